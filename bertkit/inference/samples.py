"""Samples for the report of pretraining: what the model predicts for masked words of held-out text, or how it continues the text."""

import numpy as np

from bertkit.base.batch import PretrainBatch
from bertkit.data.batches.sampling import ExampleSource
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.display.page import Table
from bertkit.inference.generating import forget_weights, write_texts
from bertkit.inference.task_model import continuation_for
from bertkit.model.heads import BertWithHeads
from bertkit.run.objective import best_tokens
from bertkit.tasks.batching import FeatureBatches
from bertkit.tasks.feature import Feature
from bertkit.train.loop import evaluation_mode

NUM_SAMPLES = 4  # texts


def held_out_samples(
    model: BertWithHeads, tokenizer: Tokenizer, held_out: ExampleSource, precision: str = "fp32"
) -> Table:
    """Fill in the masks of some texts, or continue their first halves; return a table."""
    batch = held_out.in_order(0, min(NUM_SAMPLES, held_out.epoch_length))
    fill = _continued if batch.objective == "lm" else _filled
    return fill(model, tokenizer, batch, precision)


def _filled(model: BertWithHeads, tokenizer: Tokenizer, batch: PretrainBatch, precision: str) -> Table:
    batch.input_ids[batch.masked_positions] = tokenizer.facts.mask
    with evaluation_mode(model):
        best, shares = best_tokens(model, batch, 3, precision)
    ends, filled, texts_of = np.cumsum(batch.sequence_lengths), [], tokenizer.texts_of
    for truth, tokens, own in zip(texts_of(batch.masked_labels), best, shares, strict=True):
        predictions = ", ".join(f"“{text}” {share:.0%}" for text, share in zip(texts_of(tokens), own, strict=True))
        filled.append(f"“{truth}”: {predictions}")
    texts = map(tokenizer.decode, np.split(batch.input_ids, ends[:-1]))
    parts = np.split(np.array(filled), np.searchsorted(batch.masked_positions, ends[:-1]))
    rows = [(text, "; ".join(part)) for text, part in zip(texts, parts, strict=True)]
    return Table("Held-out text", ("text", "truth: predictions for each [MASK]"), rows)


def _continued(model: BertWithHeads, tokenizer: Tokenizer, batch: PretrainBatch, precision: str) -> Table:
    ids = np.split(batch.input_ids, np.cumsum(batch.sequence_lengths)[:-1])
    halves = [(text[: len(text) // 2], text[len(text) // 2 : -1]) for text in ids]
    search = continuation_for(model, {}).search
    features = [Feature(n, half.tolist(), [0] * len(half), None) for n, (half, _) in enumerate(halves)]
    with evaluation_mode(model):
        texts = FeatureBatches(features, "next_token").take(np.arange(len(features)))
        written = write_texts(model, texts, search, precision)
    forget_weights(model)
    decode = tokenizer.decode
    rows = [
        (decode(before[1:]), decode(after), decode(best[0][0][: len(after)]))
        for (before, after), best in zip(halves, written, strict=True)
    ]
    return Table("Held-out text", ("text", "what follows", "what the model writes"), rows)
