"""Collating: `[CLS] A [SEP] B [SEP]` by hand."""

from pathlib import Path

import numpy as np
from preparing import write_split

from bertkit.data.batches.collate import collate, pack_examples
from bertkit.data.batches.segments import Examples
from bertkit.data.corpus.prepared import SplitTokens
from bertkit.data.corpus.tokenizer import VocabFacts
from bertkit.data.corpus.word_rules import WordBorders
from bertkit.data.data_config import MaskingConfig

C, S, M = 2, 3, 4
VOCAB = VocabFacts(97, 0, 1, C, S, M, WordBorders(np.zeros(97, bool), np.zeros(97, bool)))


def make_split(folder: Path, shard_tokens: int) -> SplitTokens:
    """Tokens 10 11 12 | 13 14 and, in another document, 15 16 17 18."""
    return write_split(folder, [[[10, 11, 12], [13, 14]], [[15, 16, 17, 18]]], shard_tokens)


def make_examples(segments: list[list[tuple[int, int]]], labels: list[int] | None) -> Examples:
    flat = np.array([segment for example in segments for segment in example])
    first = np.cumsum([0, *map(len, segments)])
    return Examples(first, flat[:, 0], flat[:, 1], None if labels is None else np.array(labels))


def test_pairs_are_packed_as_by_hand(tmp_path: Path) -> None:
    for shard_tokens in (100, 1):
        split = make_split(tmp_path / str(shard_tokens), shard_tokens)
        examples = make_examples([[(0, 3), (3, 2)], [(1, 1), (6, 2)]], [0, 1])
        ids, types, lengths = pack_examples(split, examples, VOCAB)
        assert ids.tolist() == [C, 10, 11, 12, S, 13, 14, S, C, 11, S, 16, 17, S]
        assert types.tolist() == [0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1]
        assert lengths.tolist() == [8, 6]
        assert ids.dtype == types.dtype == lengths.dtype == np.int64


def test_blocks_are_packed_as_by_hand(tmp_path: Path) -> None:
    split, examples = make_split(tmp_path / "split", 100), make_examples([[(5, 4), (0, 3)], [(3, 2)]], None)
    ids, types, lengths = pack_examples(split, examples, VOCAB)
    assert ids.tolist() == [C, 15, 16, 17, 18, S, 10, 11, 12, S, C, 13, 14, S]
    assert types.tolist() == [0] * 14
    assert lengths.tolist() == [10, 4]
    batch = collate(split, examples, np.array([5, 6], np.uint64), MaskingConfig(0.15, 0.8, 0.1), VOCAB)
    assert "next_sentence" not in batch.targets
    assert list(batch.loss_counts) == ["mlm"]


def test_batch_is_as_by_hand(tmp_path: Path) -> None:
    """With all of the chosen tokens masked, the batch is the assembled one but for them."""
    split = make_split(tmp_path / "split", 100)
    examples = make_examples([[(0, 3), (3, 2)], [(1, 1), (6, 2)]], [0, 1])
    keys = np.array([5, 6], np.uint64)
    batch = collate(split, examples, keys, MaskingConfig(0.15, 1.0, 0.0), VOCAB)
    ids, types, lengths = pack_examples(split, examples, VOCAB)
    assert batch.loss_counts == {"mlm": 2, "nsp": 2}
    assert batch.num_tokens == 14
    assert batch.masked_labels.tolist() == ids[batch.masked_positions].tolist()
    assert (batch.masked_positions < [8, 14]).all()
    assert (batch.masked_positions >= [0, 8]).all()
    ids[batch.masked_positions] = M
    assert batch.input_ids.tolist() == ids.tolist()
    assert batch.token_type_ids.tolist() == types.tolist()
    assert batch.sequence_lengths.tolist() == lengths.tolist()
    assert batch.targets["next_sentence"].labels.tolist() == [0, 1]
