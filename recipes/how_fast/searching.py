"""BM25 search, by the number of passages: made text whose words are as frequent as those of natural text (Zipf's law).

python recipes/how_fast/searching.py --sizes 100000 1000000
"""

import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from common import Options, parsed

from bertkit.apps.retrieval.library import Library
from bertkit.apps.retrieval.library_writer import opened_for_writing
from bertkit.apps.retrieval.passages import LibraryDocument, document_of
from bertkit.data.data_config import PassagesConfig

VOCABULARY = 1_000_000
PASSAGE_WORDS, QUESTION_WORDS = 100, 10
SIZES: Options = {
    "--sizes": {"type": int, "nargs": "+", "default": [10_000, 100_000], "help": "numbers of passages"},
    "--num-questions": {"type": int, "default": 500},
    "--num-hits": {"type": int, "default": 20},
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Make a library of each size, and ask it."""
    args = parsed(__doc__, arguments, SIZES)
    for size in args.sizes:
        with tempfile.TemporaryDirectory() as folder:
            path, began = Path(folder) / "library.db", time.process_time()
            with opened_for_writing(path, PassagesConfig(PASSAGE_WORDS, 0, "none", "drop")) as library:
                library.sync("made text", None, documents(size))
                library.finish()
            made = time.process_time() - began
            milliseconds = latencies(Library(path), args.num_questions, args.num_hits)
            p50, p99 = statistics.median(milliseconds), statistics.quantiles(milliseconds, n=100)[-1]
            megabytes = path.stat().st_size / 1e6
        print(f"{size:,} passages: {megabytes:,.0f} MB, made in {made:.0f} s; p50 {p50:.1f} ms, p99 {p99:.1f} ms")


def latencies(library: Library, num_questions: int, num_hits: int) -> list[float]:
    """Measure the milliseconds for each question; its words are as frequent as those of the passages."""
    times, generator = [], np.random.default_rng(1)
    for question in drawn(generator, num_questions, QUESTION_WORDS):
        began = time.process_time()
        library.find(question, num_hits)
        times.append((time.process_time() - began) * 1000)
    return times


def documents(count: int) -> Iterator[LibraryDocument]:
    """Make documents of one passage each."""
    for text in drawn(np.random.default_rng(0), count, PASSAGE_WORDS):
        yield document_of([text], "line")


def drawn(generator: np.random.Generator, num_texts: int, num_words: int) -> Iterator[str]:
    """Draw texts; the word of rank r has a probability proportional to 1 / r."""
    shares = np.cumsum(1 / np.arange(1, VOCABULARY + 1))
    for _ in range(num_texts):
        ranks = np.searchsorted(shares, generator.random(num_words) * shares[-1])
        yield " ".join(f"w{rank}" for rank in ranks.tolist())


if __name__ == "__main__":
    main()
