"""The pseudo-perplexity of a masked LM: each token of a sentence is hidden in turn, and predicted from all the others.

    exp(-1/N sum over sentences W, sum over tokens t of W, log P(t | W with [MASK] in the place of t))    N tokens in all

This is the number that papers compare. exp(mlm_loss) is another one: there 15 % of the tokens of several sentences are predicted
together, and a tenth of them is not hidden. Each token takes a forward pass of its sentence, so the sentences are a sample, the
same one for every model with the vocabulary. Perplexities of different vocabularies cannot be compared.

Source: Salazar et al. 2020, equations 1 and 4.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from torch import nn

from bertkit.data.corpus.prepared import SplitTokens
from bertkit.data.corpus.tokenizer import VocabFacts
from bertkit.inference.forward import require_finite
from bertkit.objectives.losses import log_probabilities
from bertkit.tasks.feature import TargetFeature
from bertkit.tasks.fill_mask import pack
from bertkit.tasks.scoring.metrics import perplexity
from bertkit.train.loop import evaluation_mode
from bertkit.train.micro_batches import AUTO_MICRO_TOKENS
from bertkit.train.processes import Ranks

MOST_TOKENS = 2**16  # in all forward passes: about 100 sentences of 25 tokens, 3 minutes for BERT-base on two cores
MOST_CANDIDATES = 4096  # sentences, of which the first ones that fit are taken


def pseudo_perplexity(
    ranks: Ranks,
    model: nn.Module,
    sentences: Sequence[list[int]],
    vocab: VocabFacts,
    precision: str,
) -> dict[str, float]:
    """Return the pseudo-perplexity of a model on sentences, with the number of tokens; each process computes a share."""
    copies = [copy for sentence in sentences for copy in _copies(sentence, vocab)]
    total, tokens = 0.0, AUTO_MICRO_TOKENS[next(model.parameters()).device.type]
    with evaluation_mode(model):
        for batch in _batches(copies[ranks.rank :: ranks.size], tokens):
            targets = np.array([copy.targets[0] for copy in batch], np.int64)
            values = log_probabilities(model, pack(batch), "masked_lm", targets, precision)
            require_finite(bool(np.isfinite(values).all()), precision)
            total += float(values.sum())
    loss = -sum(ranks.on_every(lambda: total)) / len(copies)
    return {"pseudo_perplexity": perplexity(loss), "pseudo_perplexity_tokens": len(copies)}


def sample_sentences(splits: Sequence[SplitTokens], max_seq_length: int, most: int | None) -> list[list[int]]:
    """Return the tokens of sentences from all over some splits, at most `most`; long ones are cut."""
    ends, room = np.cumsum([len(split.sentences) - 1 for split in splits]), max_seq_length - 2
    places = np.unique(np.linspace(0, ends[-1] - 1, min(ends[-1], MOST_CANDIDATES)).astype(np.int64))
    chosen, num_tokens = list[list[int]](), 0
    for place in np.random.default_rng(0).permutation(places)[:most].tolist():
        number = int(np.searchsorted(ends, place, "right"))
        split, last = splits[number], place - int(ends[number])  # counted from the end of the split
        start, end = split.sentences[last - 1 :][:2].tolist()
        sentence = split.tokens(start, min(end - start, room)).tolist()
        num_tokens += len(sentence) * (len(sentence) + 2)
        if chosen and num_tokens > MOST_TOKENS:
            break
        chosen.append(sentence)
    return chosen


def _copies(sentence: list[int], vocab: VocabFacts) -> Iterator[TargetFeature]:
    """Yield a copy of a sentence for each of its tokens, in which that is hidden."""
    for place, token in enumerate(sentence):
        ids = [vocab.cls, *sentence[:place], vocab.mask, *sentence[place + 1 :], vocab.sep]
        yield TargetFeature(0, ids, [0] * len(ids), masks=[place + 1], targets=[token])


def _batches(copies: Sequence[TargetFeature], most: int) -> Iterator[list[TargetFeature]]:
    """Divide copies into batches of at most `most` tokens, or of one copy."""
    batch, size = list[TargetFeature](), 0
    for copy in copies:
        if batch and size + len(copy.input_ids) > most:
            yield batch
            batch, size = [], 0
        batch.append(copy)
        size += len(copy.input_ids)
    if batch:
        yield batch
