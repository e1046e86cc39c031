"""Held-out losses by sequence and their controls: a model that learned nothing from context is never said to have learned."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from conftest import SHARED, make_text, write_text

from bertkit.cli import run
from bertkit.display.console import has_learned
from bertkit.inference.held_out import SplitLosses, Sums

RNG = np.random.default_rng(0)


def sums(losses: np.ndarray, count: np.ndarray) -> Sums:
    return Sums(count, losses, losses * 0, count * 0, losses * 0)


def test_intervals_over_documents_cover_what_they_say() -> None:
    """Documents of unequal lengths, with effects of their own: the lower end exceeds the truth in about 0.05 % of all cases."""
    documents = np.repeat(np.arange(23), RNG.integers(1, 19, 23))
    count, exceeded = RNG.integers(5, 20, len(documents)) * 1.0, 0
    for _ in range(2000):
        effect = RNG.normal(0, 0.3, 23)[documents] + RNG.normal(0, 0.5, len(documents))
        model = sums(count * 5.0, count)
        losses = SplitLosses(
            "mlm", documents, model, sums(count * (5.0 + effect), count), model, sums(count * 0, count * 0)
        )
        exceeded += losses.metrics()["mlm_gain_on_counting"] > 0
    assert exceeded <= 8  # 2,000 draws of 0.0005, and room for skewed weights


def test_a_single_sequence_proves_nothing() -> None:
    one = np.ones(1)
    losses = SplitLosses(
        "mlm", np.zeros(1, int), sums(one, one), sums(9 * one, one), sums(9 * one, one), sums(0 * one, 0 * one)
    )
    assert losses.metrics()["mlm_gain_on_counting"] == -math.inf


def test_splits_together_keep_their_documents_apart() -> None:
    count = np.ones(29)
    part = SplitLosses("mlm", np.arange(29) // 2, *[sums(RNG.random(29), count) for _ in range(4)])
    both = SplitLosses.joined([part, part])
    assert len(np.unique(both.documents)) == 2 * len(np.unique(part.documents))
    assert both.metrics()["mlm_loss"] == pytest.approx(part.metrics()["mlm_loss"])


TINY = [
    "device=cpu", "model=tiny", "model.hidden_size=32", "model.intermediate_size=64", "model.max_position_embeddings=48",
    "segments.max_seq_length=40", "segments=full_sentences", "model.initializer_range=0.1", "batch.micro_sequences=16", "batch.sequences=32",
    "optimizer.peak_learning_rate=3e-3", "schedule.warmup_steps=20", "model.hidden_dropout_prob=0", "model.attention_probs_dropout_prob=0",
]  # fmt: skip


# the defaults of `pretrain model=tiny` in the first tenth of a run: sequences of 32, and the rate does not fall yet
FIRST_TENTH = [
    "device=cpu", "model=tiny", "segments.max_seq_length=32", "schedule.power=0", "schedule.warmup_steps=100",
    "checkpoint.every_steps=1000", "evaluation.every_steps=100",
]  # fmt: skip


def pretrained(
    documents: list[list[str]], folder: Path, steps: int, *more: str, settings: list[str] = TINY
) -> dict[str, float]:
    """Pretrain on documents; return the final metrics."""
    folder.mkdir()
    text, data, output = write_text(folder / "text.txt", documents), folder / "data", folder / "run"
    assert (
        run(["prepare", f"corpus.path={text}", f"output_dir={data}", "held_out_prob=0.1", "tokenizer.vocab_size=900"])
        == 0
    )
    assert run(["pretrain", f"data_dir={data}", f"output_dir={output}", f"steps={steps}", *settings, *more]) == 0
    metrics: dict[str, float] = json.loads((output / "eval.json").read_text())
    return metrics


def shuffled(documents: list[list[str]], seed: int) -> list[list[str]]:
    """The same words in any order, over all documents."""
    rng = np.random.default_rng(seed)
    words = iter(
        rng.permutation([word for document in documents for sentence in document for word in sentence.split()]).tolist()
    )
    return [[" ".join(next(words) for _ in sentence.split()) for sentence in document] for document in documents]


def test_topics_are_learned_and_shuffled_topics_are_not(tmp_path: Path) -> None:
    """The verdict of a run, by the words' topics, which only other words tell."""
    text = make_text(200)
    assert has_learned(pretrained(text, tmp_path / "topics", 80))
    metrics = pretrained(shuffled(text, 0), tmp_path / "shuffled", 50)
    assert not has_learned(metrics)
    assert metrics["mlm_loss"] < 4.5  # it knows the thirty words, with their pieces


def zipf_text(seed: int, *, of_pieces: bool) -> list[list[str]]:
    """Independent words: each a single token, or made of pieces."""
    rng = np.random.default_rng(seed)
    size = 400
    share = 1 / np.arange(1, size + 1)
    syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
    names = sorted({"".join(rng.choice(syllables, 3 if of_pieces else 2)) for _ in range(9 * size)})[
        :: 9 if of_pieces else 8
    ][:size]
    share = share[: len(names)] / share[: len(names)].sum()
    return [[" ".join(rng.choice(names, 11, p=share)) for _ in range(13)] for _ in range(150)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("kind", ["tokens", "pieces", "shuffled books", "books"])
def test_nothing_is_learned_where_context_says_nothing(kind: str, seed: int, tmp_path: Path) -> None:
    books = SHARED / "text" / "books_en"
    if "books" in kind and not books.is_dir():
        pytest.skip("the shared books are not here")
    if "books" in kind:
        lines = (books / f"part_{seed:02d}.txt").read_text().split("\n\n")[:120]
        text = [document.strip().split("\n") for document in lines if document.strip()]
        text = shuffled(text, seed) if kind == "shuffled books" else text
    else:
        text = zipf_text(seed, of_pieces=kind == "pieces")
    if (
        kind == "books"
    ):  # a tenth of 40 epochs; a model of 32 is then better than both controls at [MASK] alone, not at all positions
        metrics = pretrained(text, tmp_path / "run", 1400, f"seed={seed}", settings=FIRST_TENTH)
    else:
        metrics = pretrained(text, tmp_path / "run", 1500, f"seed={seed}", "masking.probability=0.3")
    assert has_learned(metrics) == (kind == "books"), metrics


@pytest.mark.slow
def test_a_first_model_is_better_than_counting_within_a_tenth_of_its_run(tmp_path: Path) -> None:
    """`bertkit pretrain model=tiny` with its defaults on the quickstart's text, whose 40 epochs are 10,000 steps: after 600 already."""
    data, output = tmp_path / "data", tmp_path / "run"
    words = ["corpus=python_docs", "tokenizer.vocab_size=2048", "held_out_prob=0.05"]
    assert run(["prepare", *words, f"output_dir={data}"]) == 0
    assert run(["pretrain", f"data_dir={data}", f"output_dir={output}", "steps=600", *FIRST_TENTH]) == 0
    metrics = json.loads((output / "eval.json").read_text())
    assert has_learned(metrics), metrics
    assert metrics["mlm_loss"] < metrics["mlm_loss_by_counting"] - 0.1
