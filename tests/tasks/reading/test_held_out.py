"""Which examples `dev_share` holds out: over random files, and beside scikit-learn's splits."""

import dataclasses
import itertools
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.model_selection import StratifiedShuffleSplit
from task_configs import task_config
from task_files import read, rows, write

from bertkit.tasks.reading.held_out import by_hash
from bertkit.tasks.reading.source import SplitExamples
from bertkit.tasks.sequence import SequenceExample
from bertkit.tasks.trainable import task_of

WORDS = [f"w{number}" for number in range(400)]
FORMS = ("alone", "chain", "star", "clique", "copies", "template")
KINDS = ("classes", "rare classes", "numbers", "sets")


def group_of(draw: random.Random, form: str, size: int) -> list[str]:
    """Make texts that are near-duplicates in a certain form; the first is the longest."""
    words = [draw.choice(WORDS) for _ in range(draw.randrange(8, 24))]
    if form == "chain":  # each shares most of its shingles with the next, and few with the one after it
        long = [draw.choice(WORDS) for _ in range(10 + 3 * size)]
        return [" ".join(long[3 * n : 3 * n + 11]) for n in range(size)]
    if form == "star":  # phrases of one text, which need not share any
        long = [draw.choice(WORDS) for _ in range(7 * size)]
        return [" ".join(long), *(" ".join(long[7 * n : 7 * n + 7]) for n in range(size - 1))]
    if form == "clique":
        return [" ".join([*words, draw.choice(WORDS)]) for _ in range(size)]
    if form == "template":
        return [f"the {words[0]} was clean and the people were very {draw.choice(WORDS)} to us" for _ in range(size)]
    return (
        [" ".join(words)] * size
        if form == "copies"
        else [" ".join(draw.choice(WORDS) for _ in words) for _ in range(size)]
    )


def random_file(seed: int, most: int) -> tuple[SplitExamples, float]:
    draw = random.Random(seed)
    size, kind, share = draw.randrange(20, most), draw.choice(KINDS), draw.choice([0.05, 0.1, 0.1, 0.2, 0.3, 0.5])
    texts, forms = list[str](), [draw.choice(FORMS) for _ in range(3)]
    while len(texts) < size:
        texts += group_of(draw, draw.choice(forms), min(draw.choice([1, 1, 2, 3, 7, 31, 150]), size - len(texts)))
    names = [f"label {n}" for n in range(draw.choice([2, 3, 7, 40]))]
    weights = [1.0 if kind == "classes" else 1 / (1 + n) ** 2 for n in range(len(names))]
    labels: list[Any]
    match kind:
        case "numbers":
            labels, settings = [draw.choice([draw.gauss(0, 1), 3.0]) for _ in texts], ["task.labels=regression"]
        case "sets":
            labels = [tuple({*draw.choices(names, weights, k=draw.randrange(4))}) for _ in texts]
            settings = ["task.multi_label=true", "task.metrics=[f1_micro]", "task.best_metric=f1_micro"]
        case _:
            labels, settings = draw.choices(names, weights, k=size), []
    examples = [
        SequenceExample(str(n), text, None, label) for n, (text, label) in enumerate(zip(texts, labels, strict=True))
    ]
    task = task_of(task_config("sequence", *settings), () if kind == "numbers" else tuple(names))
    return SplitExamples(task, "random (csv)", examples, "random"), share


def near_in(train: list[str], held: list[str]) -> int:
    """Count the texts of `held` beside one of `train`: with equal words, or of which one has 0.6 of the shingles of the other."""

    def shingles(text: str) -> set[tuple[str, ...]]:
        words = text.split()
        return {*zip(words, words[1:], words[2:], strict=False)}

    def are_near(one: set[tuple[str, ...]], other: set[tuple[str, ...]]) -> bool:
        smaller = min(len(one), len(other))
        return smaller >= 4 and len(one & other) >= 0.6 * smaller

    known, texts = [shingles(text) for text in train], {*train}
    return sum(text in texts or any(are_near(shingles(text), one) for one in known) for text in held)


def check(seed: int, most: int) -> None:
    source, share = random_file(seed, most)
    kept, held = source.hold_out(share, seed)
    count = len(source.examples)
    assert sorted([*kept.examples, *held.examples], key=lambda e: int(e.id)) == source.examples
    if abs(len(held.examples) / count - share) > share / 5:
        wanted = max(1, round(share * count))
        reason = "the nearest whole number" if len(held.examples) == wanted else "so that both sides have each label"
        line = f"dev_share={share:g} of random: {len(held.examples)} rows? of {count:,} .*, {reason}"
        assert re.fullmatch(line, held.file_warnings[0])
        assert share * count < 5 or len({e.label for e in source.examples}) > share * count
    else:
        assert held.file_warnings == ()
    sizes = Counter(itertools.chain.from_iterable(map(source.task.labels_of, source.examples)))
    parts = [Counter(itertools.chain.from_iterable(map(source.task.labels_of, part.examples))) for part in (kept, held)]
    if not source.task.config.is_regression:
        assert [label for label, size in sizes.items() if size > 1 and not (parts[0][label] and parts[1][label])] == []
    if most <= 300:
        assert held.num_near(kept) == near_in([e.text for e in kept.examples], [e.text for e in held.examples])


def test_random_files_are_split_as_asked() -> None:
    for seed in range(15):
        check(seed, 300)


@pytest.mark.slow
def test_many_random_files_are_split_as_asked() -> None:
    for seed in range(30, 230):
        check(seed, 300 if seed % 2 else 2001)


def test_labels_have_the_shares_of_scikit_learn() -> None:
    """Without near-duplicates; numbers as scikit-learn's users split them, in ten parts of equal size."""
    draw = np.random.default_rng(0)
    texts, labels = [f"text {n}" for n in range(1000)], draw.choice(list("abcd"), 1000, p=[0.6, 0.25, 0.1, 0.05])
    numbers = draw.normal(size=1000)
    tenths = (numbers.argsort().argsort() // 100).astype(str)
    for y, own, setting in ((labels, labels.tolist(), "auto"), (tenths, numbers.tolist(), "regression")):
        _, theirs = next(StratifiedShuffleSplit(1, test_size=0.15, random_state=0).split(texts, y))
        examples = [
            SequenceExample(str(n), *pair, None) for n, pair in enumerate(zip(texts, [None] * 1000, strict=True))
        ]
        examples = [dataclasses.replace(one, label=label) for one, label in zip(examples, own, strict=True)]
        source = SplitExamples(task_of(task_config("sequence", f"task.labels={setting}")), "", examples)
        splits = [{int(e.id) for e in source.hold_out(0.15, seed)[1].examples} for seed in (0, 0, 1)]
        assert splits[0] == splits[1] != splits[2]
        for held in splits:
            counts, expected = Counter(y[[*held]]), Counter(y[theirs])
            assert len(held) == 150
            assert all(abs(counts[name] - expected[name]) <= 1 for name in expected)


def test_templates_and_rare_labels(tmp_path: Path) -> None:
    """The two files of the report: reviews that share a template, and four rows with a rare label."""
    template = "The {} was clean and the staff at the {} was very kind to all of us"
    pairs = [*itertools.product(["room", "lobby", "pool", "bar", "hall"], [f"desk {n}" for n in range(62)])]
    lines = [f"{template.format(*pair)},{'yes' if n % 3 else 'no'}\n" for n, pair in enumerate(pairs)]
    write(tmp_path, "train.csv", "text,label\n" + "".join(lines))
    kept, held = read(tmp_path, "sequence", "train").hold_out(0.1)
    assert (len(kept.examples), len(held.examples)) == (279, 31)
    assert held.num_near(kept) == 31  # which a warning says
    assert held.describe().startswith("10.0% held out of ")
    text = "text,label\n" + "".join(f"text {n},{'common' if n % 40 else 'rare'}\n" for n in range(160))
    write(tmp_path, "train.csv", text)
    source = read(tmp_path, "sequence", "train")
    held_rows = []
    for seed in range(3):
        kept, held = source.hold_out(0.1, seed)
        assert Counter(row[3] for row in rows(held)) == {"common": 15, "rare": 1}
        assert (kept.warnings, held.warnings) == ((), ())
        held_rows.append(rows(held))
    assert held_rows[0] != held_rows[1] != held_rows[2]


def test_earlier_versions_chose_by_a_hash() -> None:
    """The numbers of version 0.2.0 for these texts."""
    draw = random.Random(5)
    texts = [text for size in (1, 2, 5, 9) for form in FORMS for text in group_of(draw, form, size)]
    together = [0, 3, 7, 12, 13, 14, 15, 18, 19, 21, 22, 50, 53, 55, 56]
    assert np.flatnonzero(by_hash(texts, 0.2, "near-duplicates together")).tolist() == together
    by_text = [0, 3, 7, 12, 14, 15, 18, 19, 21, 22, 25, 32, 36, 43, 46, 50, 53, 55, 56, 73, 78, 83]
    assert np.flatnonzero(by_hash(texts, 0.2, None)).tolist() == by_text
