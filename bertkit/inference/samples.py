"""Samples for the report of pretraining: what the model predicts for masked words of held-out text, or how it continues the text."""

import itertools

import numpy as np
from numpy.typing import NDArray

from bertkit.base.batch import Batch
from bertkit.data.batches.description import readable
from bertkit.data.batches.sampling import ExampleSource
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.display.page import Table
from bertkit.inference.generating import forget_weights, write_texts
from bertkit.inference.task_model import continuation_for
from bertkit.model.heads import BertWithHeads
from bertkit.objectives.losses import best_tokens
from bertkit.tasks.batching import FeatureBatches
from bertkit.tasks.feature import Feature
from bertkit.train.loop import evaluation_mode

NUM_SAMPLES = 5  # texts
NUM_GUESSES = 3  # for each mask


def held_out_samples(
    model: BertWithHeads, tokenizer: Tokenizer, held_out: ExampleSource, precision: str = "fp32"
) -> Table:
    """Fill in the masks of some texts, or continue their first halves; return a table."""
    batch = held_out.in_order(0, min(NUM_SAMPLES, held_out.epoch_length))
    fill = _continued if batch.token_head == "next_token" else _filled
    return fill(model, tokenizer, batch, precision)


def _filled(model: BertWithHeads, tokenizer: Tokenizer, batch: Batch, precision: str) -> Table:
    """Show each text with the model's guesses in the place of its masks: [guess ✓] or [guess ✗ truth]."""
    batch.input_ids[batch.masked_positions] = tokenizer.facts.mask
    with evaluation_mode(model):
        best, probs = best_tokens(model, batch, NUM_GUESSES, precision)
    mask, texts_of = tokenizer.vocab[tokenizer.facts.mask], tokenizer.texts_of
    ends, shown, guesses = np.cumsum(batch.sequence_lengths), [], []
    for truth, tokens, own in zip(texts_of(batch.masked_labels), best, probs, strict=True):
        first, *_ = texts = texts_of(tokens)
        shown.append(f"[{first} ✓]" if first == truth else f"[{first} ✗ {truth}]")
        guesses.append(", ".join(f"“{text}” {share:.0%}" for text, share in zip(texts, own, strict=True)))
    borders, rows = np.searchsorted(batch.masked_positions, [0, *ends]).tolist(), []
    for ids, first, last in zip(np.split(batch.input_ids, ends[:-1]), borders[:-1], borders[1:], strict=True):
        before, *after = readable(tokenizer, ids).split(mask)
        text = before + "".join(itertools.chain(*zip(shown[first:last], after, strict=True)))
        rows.append((text, "; ".join(guesses[first:last])))
    return Table("Held-out text", ("text, with [guess ✓] or [guess ✗ truth] for each [MASK]", "probabilities"), rows)


def _halves(text: NDArray[np.integer], tokenizer: Tokenizer) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
    """Cut a text in half, before a word, and leave out the last token, [SEP]."""
    begins, half = tokenizer.facts.borders.begins(text), len(text) // 2
    place = half + int(np.argmax(begins[half:-1])) if begins[half:-1].any() else half
    return text[:place], text[place:-1]


def _continued(model: BertWithHeads, tokenizer: Tokenizer, batch: Batch, precision: str) -> Table:
    ids = np.split(batch.input_ids, np.cumsum(batch.sequence_lengths)[:-1])
    halves = [_halves(text, tokenizer) for text in ids]
    search = continuation_for(model, {}).search
    features = [Feature(n, half.tolist(), [0] * len(half), None) for n, (half, _) in enumerate(halves)]
    with evaluation_mode(model):
        texts = FeatureBatches(features, "next_token").take(np.arange(len(features)))
        written = write_texts(model, texts, search, precision)
    forget_weights(model)
    decode = tokenizer.decode
    rows = [
        (readable(tokenizer, before[1:]), decode(after), decode(best[0][0][: len(after)]))
        for (before, after), best in zip(halves, written, strict=True)
    ]
    return Table("Held-out text", ("text", "what follows", "what the model writes"), rows)
