"""A prepared dataset described for people: its counts, some of its training examples, and the warnings about its text."""

import numpy as np

from bertkit.data.batches.collate import pack_examples
from bertkit.data.batches.instances import has_instances, open_instances
from bertkit.data.batches.segments import document_pairs, select
from bertkit.data.corpus.manifest import SPLITS
from bertkit.data.corpus.prepared import PreparedDataset
from bertkit.data.data_config import SegmentsConfig

NUM_EXAMPLES = 3
EXAMPLE_SEGMENTS = SegmentsConfig("pairs", max_seq_length=64, short_seq_prob=0.1, next_sentence="nsp")


def describe(dataset: PreparedDataset) -> str:
    """Describe a dataset in several lines."""
    train, held_out = (dataset.manifest["splits"][name] for name in SPLITS)
    facts = dataset.manifest["statistics"]
    evaluation = f"{held_out['documents']:,} documents, {held_out['tokens']:,} tokens held out for evaluation"
    examples = _stored_examples if has_instances(dataset) else _drawn_examples
    if has_instances(dataset):
        stored = dataset.manifest["instances"]
        evaluation = (
            f"{stored['count']:,} fixed instances of at most {stored['segments']['max_seq_length']} tokens, from all "
            "documents: none is held out for evaluation, as in Google's original"
        )
    lines = [
        f"{train['documents']:,} documents, {train['sentences']:,} sentences, {train['tokens']:,} tokens to train on",
        evaluation,
        f"vocabulary of {facts['vocab_size']:,}, {100 * facts['unknown_rate']:.2f} % unknown, "
        f"{facts['tokens_per_sentence']:.1f} tokens per sentence",
        f"unigram entropy {facts['unigram_entropy']:.2f} nats: the MLM loss of a model that only counts words",
    ]
    for is_random, ids in examples(dataset):
        lines += ["", f"{'random next' if is_random else 'actual next'}: {dataset.tokenizer.decode(ids)}"]
    for finding in dataset.manifest["findings"]:
        lines += ["", f"warning: {finding['name']}: {finding['text']}"]
    return "\n".join(lines)


def _stored_examples(dataset: PreparedDataset) -> list[tuple[bool, list[int]]]:
    """Return the label and the masked token ids of the first fixed instances."""
    instances = open_instances(dataset)
    chosen = np.arange(min(NUM_EXAMPLES, len(instances)))
    return [(bool(instances.is_random_next[n]), instances.batch(np.array([n])).input_ids.tolist()) for n in chosen]


def _drawn_examples(dataset: PreparedDataset) -> list[tuple[bool, list[int]]]:
    """Return the label and the token ids of a few training pairs, with either label, from all over the text."""
    split = dataset.splits["train"] if dataset.splits["train"].num_documents else dataset.splits["held_out"]
    documents = np.unique(np.linspace(0, split.num_documents - 1, NUM_EXAMPLES).astype(np.int64))
    pairs = document_pairs(split.sentences, split.documents, documents, EXAMPLE_SEGMENTS, seed=0, epoch=0)
    assert pairs.next_sentence_labels is not None
    actual_first = np.argsort(pairs.next_sentence_labels, kind="stable")
    chosen = actual_first[np.linspace(0, len(pairs) - 1, min(NUM_EXAMPLES, len(pairs))).astype(np.int64)]
    ids, _, lengths = pack_examples(split, select(pairs, chosen), dataset.tokenizer.facts)
    sequences = np.split(ids, np.cumsum(lengths)[:-1])
    return [(bool(pairs.next_sentence_labels[n]), ids.tolist()) for n, ids in zip(chosen, sequences, strict=True)]
