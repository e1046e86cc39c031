"""The prepared dataset on disk: what is written is read, and damage is refused."""

import hashlib
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from conftest import make_text, write_text
from preparing import write_split

from bertkit.base.errors import InputError
from bertkit.base.files import to_json
from bertkit.base.text_files import read_json
from bertkit.cli import run
from bertkit.data.corpus.manifest import damaged_files
from bertkit.data.corpus.prepared import SplitTokens, check_ids, open_prepared, token_dtype


def random_documents(limit: int, seed: int = 0) -> list[list[list[int]]]:
    rng = np.random.default_rng(seed)
    return [
        [rng.integers(0, limit, length).tolist() for length in rng.integers(1, 20, rng.integers(1, 9))]
        for _ in range(53)
    ]


@pytest.mark.parametrize(("vocab_size", "num_bytes"), [(101, 2), (65_536, 2), (65_537, 4), (119_547, 4)])
@pytest.mark.parametrize("shard_tokens", [1, 211, 10**6])
def test_written_split_is_read_back(tmp_path: Path, vocab_size: int, num_bytes: int, shard_tokens: int) -> None:
    assert token_dtype(vocab_size).itemsize == num_bytes
    documents = random_documents(vocab_size)
    documents[0][0][0] = vocab_size - 1
    split = write_split(tmp_path / "train", documents, shard_tokens, vocab_size)

    sizes = [path.stat().st_size // num_bytes for path in (tmp_path / "train").glob("tokens-*.bin")]
    assert {1: len(sizes) == 53, 211: 53 > len(sizes) > 10, 10**6: len(sizes) == 1}[shard_tokens]
    assert max(sizes) <= 211 or shard_tokens != 211
    assert (split.num_documents, len(split.sentences) - 1) == (53, sum(map(len, documents)))
    assert split.num_tokens == split.sentences[-1] == sum(sizes)
    read = []
    for first, last in pairwise(split.documents):
        bounds = split.sentences[first : last + 1]
        read.append([split.tokens(int(a), int(b - a)).tolist() for a, b in pairwise(bounds)])
        whole = split.tokens(int(bounds[0]), int(bounds[-1] - bounds[0])).tolist()
        assert whole == [token for sentence in read[-1] for token in sentence]  # a document is never cut by a shard
    assert read == documents


@pytest.mark.parametrize("shard_tokens", [20, 10**6])
def test_ids_outside_the_vocabulary_are_refused(tmp_path: Path, shard_tokens: int) -> None:
    split = write_split(tmp_path / "train", [[[7] * 19], [[7, 7, 7], [7, 101, 7]]], shard_tokens)
    check_ids(split, 102)
    place = "tokens-00001.bin: id 101 at token 4" if shard_tokens == 20 else "tokens-00000.bin: id 101 at token 23"
    for chunk in (1 << 22, 2, 5):
        with pytest.raises(InputError, match=f"{place} is outside the vocabulary of 101"):
            check_ids(split, 101, chunk)


@pytest.fixture
def dataset_dir(tmp_path: Path) -> Path:
    corpus = write_text(tmp_path / "corpus.txt", make_text(31))
    arguments = ["tokenizer.vocab_size=131", "held_out_prob=0.2", "shard_tokens=509"]
    assert run(["prepare", f"corpus.path={corpus}", f"output_dir={tmp_path / 'data'}", *arguments]) == 0
    return tmp_path / "data"


def test_open_prepared_gives_tokenizer_splits_and_manifest(dataset_dir: Path) -> None:
    dataset = open_prepared(dataset_dir)
    assert dataset.tokenizer.vocab_size == len(dataset.tokenizer.vocab) > 50
    assert set(dataset.splits) == {"train", "held_out"}
    assert len(dataset.manifest["splits"]["train"]["shard_tokens"]) > 2
    assert damaged_files(dataset_dir, dataset.manifest) == []
    on_disk = {path.relative_to(dataset_dir).as_posix() for path in dataset_dir.rglob("*") if path.is_file()}
    assert on_disk == {*dataset.manifest["files"], "manifest.json"}
    for split in dataset.splits.values():
        check_ids(split, dataset.tokenizer.vocab_size)


@pytest.mark.parametrize(
    "name", ["train/tokens-00001.bin", "train/sentences.bin", "held_out/documents.bin", "tokenizer/vocab.txt"]
)
def test_missing_truncated_and_flipped_files_are_named(dataset_dir: Path, name: str) -> None:
    manifest = open_prepared(dataset_dir).manifest
    path = dataset_dir / name
    content = path.read_bytes()
    middle = len(content) // 2
    path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    assert damaged_files(dataset_dir, manifest) == [name]
    path.write_bytes(content[:-1])
    with pytest.raises(InputError) as caught:
        open_prepared(dataset_dir)
    assert f"{path}: {len(content) - 1} bytes, expected {len(content)} bytes; remove {dataset_dir}" in str(caught.value)
    path.unlink()
    with pytest.raises(InputError, match=f"{name}: missing, expected {len(content)} bytes"):
        open_prepared(dataset_dir)


def test_folder_without_valid_manifest_is_refused(dataset_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such directory"):
        open_prepared(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"no manifest.json"):
        open_prepared(tmp_path / "empty")
    manifest = read_json(dataset_dir / "manifest.json")
    for content in (to_json([1]), to_json({**manifest, "format": "bertkit prepared dataset 0"})):
        (dataset_dir / "manifest.json").write_text(content)
        with pytest.raises(InputError, match=r"manifest.json: not the manifest of a prepared dataset"):
            open_prepared(dataset_dir)


def test_held_out_documents_are_chosen_by_their_text(tmp_path: Path) -> None:
    """Whatever else is in the corpus and in whatever order, and for a repeated document, too."""
    documents = make_text(101)
    documents += documents[:7]
    held_out = [
        int.from_bytes(hashlib.sha256("\n".join(document).encode()).digest()[:4], "little") < 0.3 * 2**32
        for document in documents
    ]
    assert any(held_out[:7])
    assert 20 < sum(held_out) < 45
    for order in (range(108), range(107, -1, -1)):
        folder = tmp_path / str(order.step)
        folder.mkdir()
        corpus = write_text(folder / "corpus.txt", [documents[n] for n in order])
        arguments = ["tokenizer.vocab_size=131", "held_out_prob=0.3"]
        assert run(["prepare", f"corpus.path={corpus}", f"output_dir={folder / 'data'}", *arguments]) == 0
        dataset = open_prepared(folder / "data")
        ids = {name: document_ids(split) for name, split in dataset.splits.items()}
        for name, wanted in (("train", False), ("held_out", True)):
            chosen = [documents[n] for n in order if held_out[n] is wanted]
            encoded = [[t for s in dataset.tokenizer.encode_document(document) for t in s] for document in chosen]
            assert ids[name] == encoded
        assert not {tuple(x) for x in ids["train"]} & {tuple(x) for x in ids["held_out"]}


def document_ids(split: SplitTokens) -> list[list[int]]:
    bounds = split.sentences[split.documents]
    return [split.tokens(int(a), int(b - a)).tolist() for a, b in pairwise(bounds)]
