"""Documents that repeat an earlier one: planted in random text and in books, exactly, nearly, and not nearly enough."""

import hashlib
from pathlib import Path

import numpy as np
from conftest import Capsys, real_data
from numpy.typing import NDArray
from preparing import write_vocabulary

from bertkit.cli import run
from bertkit.data.corpus.duplicates import find_duplicates
from bertkit.data.corpus.encoded_documents import EncodedDocuments, _save
from bertkit.data.corpus.manifest import read_manifest
from bertkit.data.corpus.min_hash import BANDS, ROWS, RUN, minima_of

Tokens = list[NDArray[np.int32]]


def overlap(first: NDArray[np.int32], second: NDArray[np.int32]) -> float:
    runs = [{tuple(one[n : n + RUN]) for n in range(max(1, len(one) - RUN + 1))} for one in (first, second)]
    return len(runs[0] & runs[1]) / len(runs[0] | runs[1])


def changed(rng: np.random.Generator, document: NDArray[np.int32], count: int) -> NDArray[np.int32]:
    copy = document.copy()
    copy[rng.choice(len(copy), count, replace=False)] = rng.integers(5, 9_999, count)
    return copy


def files_of(documents: Tokens, folder: Path) -> list[Path]:
    """Write them as the worker processes do, to two files; a document is one sentence, or none if it is empty."""
    paths = []
    for number, part in enumerate((documents[: len(documents) // 2], documents[len(documents) // 2 :])):
        lengths = np.array([len(one) for one in part])
        digests = [np.frombuffer(hashlib.sha256(one.tobytes()).digest(), np.uint8) for one in part]
        tokens = np.concatenate(part)
        columns = (
            np.array(digests),
            lengths,
            np.zeros(np.count_nonzero(lengths), np.uint64),
            minima_of(tokens, lengths),
            np.zeros(len(part), np.bool_),
        )
        encoded = EncodedDocuments(tokens, lengths[lengths > 0], (lengths > 0).astype(int), *columns)
        paths.append(folder / f"00000-00{number}.npz")
        _save([encoded], paths[-1], np.dtype(np.uint16))
    return paths


def test_minima_agree_as_often_as_documents_overlap() -> None:
    rng = np.random.default_rng(0)
    first = rng.integers(5, 9_999, 2_003, np.int32)
    for count in (0, 20, 100, 300):
        second = changed(rng, first, count)
        both = minima_of(np.concatenate([first, second]), np.array([len(first), len(second)]))
        expected = overlap(first, second)
        assert abs((both[0] == both[1]).mean() - expected) <= 4 * (expected * (1 - expected) / (BANDS * ROWS)) ** 0.5
    short = minima_of(np.array([7, 8, 7, 8, 8, 7], np.int32), np.array([2, 0, 2, 2]))  # fewer tokens than a run
    assert np.array_equal(short[0], short[2])
    assert not (short[0] == short[3]).any()


def test_planted_duplicates_are_found_and_no_other(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    base = [rng.integers(5, 9_999, rng.integers(3, 700), np.int32) for _ in range(400)]
    long = [one for one in base if len(one) > 200]
    copies, near = base[:50], [changed(rng, one, len(one) // 60) for one in long]
    far = [changed(rng, one, len(one) // 5) for one in long]
    assert min(map(overlap, long, near)) > 0.8
    assert max(map(overlap, long, far)) < 0.6
    documents = [*base, *copies, *far, *near, *[np.zeros(0, np.int32)] * 3]
    paths = files_of(documents, tmp_path)
    of = [len(base), len(copies), len(far), len(near), 3]
    for kind, expected in (("exact", [0, 1, 0, 0, 0]), ("near", [0, 1, 0, 1, 0])):
        found = find_duplicates(paths, kind, tmp_path)  # type: ignore[arg-type]
        assert found is not None
        assert [part.mean() for part in np.split(found, np.cumsum(of)[:-1])] == expected
    assert find_duplicates(paths, None, tmp_path) is None
    assert sorted(tmp_path.iterdir()) == paths


def test_prepare_leaves_out_and_counts_what_is_repeated(tmp_path: Path, capsys: Capsys) -> None:
    """With passages of a book; one command and shards give the same dataset."""
    passages = [
        "\n".join(lines[start : start + 20])
        for lines in (
            text.split("\n") for text in real_data("text", "books_en", "part_12.txt").read_text().split("\n\n")
        )
        for start in range(0, len(lines) - 19, 20)
    ][:60]
    near = [passage.replace(" the ", " a ", 1) for passage in passages[:20]]
    texts = [*passages, *passages[:10], *near]
    (tmp_path / "a.txt").write_text("\n\n".join(texts))
    vocabulary = f"tokenizer.path={write_vocabulary(tmp_path / 'vocab.txt')}"
    words = ["prepare", f"corpus.path={tmp_path / 'a.txt'}", vocabulary, "held_out_prob=0.2", "num_workers=1"]
    for kind, left_out in (("exact", 10), ("near", 30)):
        out = tmp_path / kind
        assert run([*words, f"corpus.deduplicate={kind}", f"output_dir={out}"]) == 0
        assert f"{left_out} documents left out for repeating an earlier one" in capsys.readouterr().out
        counts = read_manifest(out)
        assert counts["corpus"]["duplicates"] == left_out
        assert sum(split["documents"] for split in counts["splits"].values()) == len(texts) - left_out
    shards = [str(tmp_path / f"shard{number}") for number in (1, 2)]
    for number, shard in enumerate(shards, 1):
        more = [f"shard={number}/2", "part_bytes=50000", "corpus.deduplicate=near", f"output_dir={shard}"]
        assert run([*words, *more]) == 0
    assert run(["prepare", f"merge=[{','.join(shards)}]", f"output_dir={tmp_path / 'merged'}"]) == 0
    assert read_manifest(tmp_path / "merged")["splits"] == read_manifest(tmp_path / "near")["splits"]
