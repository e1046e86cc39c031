"""The files of a task, or its dataset on the hub, to examples: `read_examples`, and `describe` to say what was read.

What is wrong with a file is said in one line with the file, the line and the field. Labels are matched by name; rows
whose label is not known have None, which is an error where labels are expected: in every split but test.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

from bertkit import signs
from bertkit.errors import InputError
from bertkit.tasks.config import TaskConfig
from bertkit.tasks.files.conll import read_conll
from bertkit.tasks.files.source import NONE_OF_THEM
from bertkit.tasks.files.source import Source as Source
from bertkit.tasks.files.tables import ENDINGS, format_of, hub_table, read_table, suffix_of
from bertkit.tasks.rows import read_rows, tagging
from bertkit.tasks.task import ChoiceExample, Example, SequenceExample, SpanExample, TaggingExample

SPLITS = ("train", "dev", "test", "dev_mismatched", "test_mismatched")
OTHER_NAMES = {
    "validation": "dev",
    "dev_matched": "dev",
    "validation_matched": "dev",
    "validation_mismatched": "dev_mismatched",
    "test_matched": "test",
}
MAX_SHARES = 20  # labels that a description counts


def read_examples(task: TaskConfig, data_dir: str | None, split: str, labels: tuple[str, ...] | None = None) -> Source:
    """Read a split of a task.

    Args:
        task: what and how.
        data_dir: the task's folder or the one above it; None for the hub.
        split: "train", "dev", "test", "dev_mismatched" or "test_mismatched", or what others call them.
        labels: those of the model or the training file, for a task whose labels are not listed; None takes this file's.

    Raises:
        InputError: there are no such files, or something in them is wrong.
    """
    split = OTHER_NAMES.get(split, split)
    if split not in SPLITS:
        raise InputError(f"split={split}: expected {', '.join(SPLITS)}")
    path = find_file(task, data_dir, split)
    is_labelled = True if not split.startswith("test") else None
    if path is not None:
        return read_file(task, path, is_labelled, labels)
    hub_split = getattr(task.hub, split)
    if hub_split is None:
        raise InputError(f"task={task.name}: no {split} split on the hub; set data_dir=, or task.hub.{split}=")
    return read_rows(task, hub_table(task, hub_split), "datasets", is_labelled, labels)


def hold_out(source: Source, share: float) -> tuple[Source, Source]:
    """Divide a source into the rest and about a share of it, chosen by a hash of the texts.

    What one has is on one side: examples of the same text, pair or context stay together, wherever they stand in the file.

    Raises:
        InputError: no example is left on one of the sides.
    """
    held, rest = list[Example](), list[Example]()
    for example in signs.beating(source.examples):
        (held if _hash_of(example) < share else rest).append(example)
    if not held or not rest:
        raise InputError(
            f"dev_share={share:g}: holds out {len(held)} of the {len(source.examples)} examples of {source.name}; change it, or "
            "give a dev file"
        )
    return (
        dataclasses.replace(source, examples=rest),
        dataclasses.replace(source, examples=held, description=f"held out of {source.description}", oddities=()),
    )


def _hash_of(example: Example) -> float:
    """A number from 0 to 1 that depends on what is read, not on labels and ids."""
    if isinstance(example, TaggingExample):
        text: Any = example.words
    elif isinstance(example, SequenceExample):
        text = example.text, example.text_pair
    else:
        text = example.context
    digest = hashlib.blake2b(repr(text).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest) / 2**64


def read_file(
    task: TaskConfig, path: Path, is_labelled: bool | None = None, labels: tuple[str, ...] | None = None
) -> Source:
    """Read one file.

    Args:
        task: how it is written.
        path: the file.
        is_labelled: whether every example must have its label; None takes those that are there, False none.
        labels: as for `read_examples`.

    Raises:
        InputError: something in it is wrong.
    """
    kind = format_of(task, path)
    if kind in ("conll", "conllu"):
        if task.kind != "tagging":
            raise InputError(f"{path}: format {kind} is for tags, not for kind={task.kind}; set task.format=")
        sentences = read_conll(task, path, kind)
        return tagging(task, sentences, str(path), lambda n: f"{path}:{n}", kind, is_labelled, labels)
    return read_rows(task, read_table(task, path, kind, may_skip=bool(is_labelled)), kind, is_labelled, labels)


def describe(source: Source) -> str:
    """Say in a line what was read: the source, the number of examples, and how often each label or kind is there."""
    examples = source.examples
    text = f"{source.description}: {len(examples):,} "
    text += {SequenceExample: "rows", TaggingExample: "sequences", SpanExample: "questions", ChoiceExample: "rows"}[
        type(examples[0])
    ]
    counts: Counter[Any] = Counter()
    numbers: list[float] = []
    for example in examples:
        if isinstance(example, TaggingExample):
            counts.update(example.tags or [None] * len(example.words))
        elif isinstance(example, SpanExample):
            known = None if example.answers is None else "answered" if example.answers else "unanswerable"
            counts[known] += 1
        elif isinstance(example.label, float):
            numbers.append(example.label)
        elif isinstance(example.label, tuple):
            counts.update(example.label or [NONE_OF_THEM])
        else:
            counts[example.label] += 1
    if isinstance(examples[0], TaggingExample):
        text += f" of {sum(counts.values()):,} words"
    if numbers:
        mean = sum(numbers) / len(numbers)
        return f"{text}; labels {min(numbers):g} to {max(numbers):g}, mean {mean:.2f}"
    if set(counts) == {None}:
        return f"{text}; no labels"
    order = {label: place for place, label in enumerate(source.labels)}
    histogram = sorted(counts.items(), key=lambda item: (order.get(item[0], len(order)), str(item[0])))
    is_of_words = isinstance(examples[0], TaggingExample)
    total = sum(counts.values()) if is_of_words else len(examples)  # of which several labels may hold
    shares = [f"{'no label' if label is None else label} {n:,} ({n / total:.1%})" for label, n in histogram]
    more = [f"and {len(shares) - MAX_SHARES} more"] if len(shares) > MAX_SHARES else []
    return f"{text}; {', '.join([*shares[:MAX_SHARES], *more])}"


def find_file(task: TaskConfig, data_dir: str | None, split: str) -> Path | None:
    """Find the file of a split; None if it is the hub's.

    Raises:
        InputError: there is none, or several.
    """
    given = getattr(task.files, split)
    names = (given,) if isinstance(given, str) else given
    for path in map(Path, names):
        if path.is_file() and (path.is_absolute() or (data_dir is None and task.hub.path is None)):
            return path
    if data_dir is None:
        if task.hub.path is not None:
            return None
        raise InputError(
            f"task={task.name}: missing value: set data_dir= to the folder of its files, or task.hub.path="
        )
    if not names:
        raise InputError(f"task={task.name} has no {split} split; set task.files.{split}=")
    above = Path(data_dir).expanduser()
    if above.is_file():
        raise InputError(
            f"data_dir={data_dir} is a file; set data_dir={above.parent} task.files.{split}={above.name}, for its folder"
        )
    if not above.is_dir():
        raise InputError(f"data_dir={data_dir}: no such directory")
    folders = [*(above / folder for folder in task.folders if (above / folder).is_dir()), above]
    for name in names:
        for folder in folders:
            found = [folder / name] if (folder / name).is_file() else _matches(folder, name)
            if len(found) > 1:
                raise InputError(
                    f"{folder}: several files for {split} ({', '.join(path.name for path in found)}); "
                    f"set task.files.{split}= to one of them"
                )
            if found:
                return found[0]
    places = " or ".join(map(str, folders))
    raise InputError(
        f"{places}: no {split} file for task={task.name}; expected {' or '.join(names)}; set task.files.{split}="
    )


def _matches(folder: Path, pattern: str) -> list[Path]:
    if "*" not in pattern or Path(pattern).is_absolute():
        return []
    found = sorted(path for path in folder.glob(pattern) if path.is_file())
    known = [path for path in found if suffix_of(path) in (*ENDINGS, ".txt")]
    return known or found  # no train.csv.bak beside train.csv
