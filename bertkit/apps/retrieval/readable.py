"""The answers to a question as lines for a terminal."""

from collections.abc import Iterator, Sequence

from bertkit.apps.retrieval.passages import sentence_around
from bertkit.base.errors import counted
from bertkit.base.text_files import JsonObject


def readable(result: JsonObject, unmet: Sequence[str]) -> Iterator[str]:
    """Yield lines for a terminal: the answer in its sentence, and numbered passages with their snippets.

    `unmet` has the conditions, if no document fulfils them.
    """
    hits, has_odds = result["answers"], result["has_odds"]
    if not hits:
        yield f"no document has where={' and '.join(unmet)}" if unmet else "no passage contains a word of the question"
    best = next((hit for hit in hits if hit["answer"] and not (has_odds and hit["score_bert"] < 0)), None)
    if best is not None:
        start, end = sentence_around(best["passage"], best["start"])
        yield _marked(best["passage"][start:end], [(best["start"] - start, best["end"] - start, ">>", "<<")])
    for number, hit in enumerate(hits, 1):
        where = ", ".join(filter(None, (hit["source"], hit["place"])))
        vectors = "" if hit["score_vectors"] is None else f"  vectors {hit['score_vectors']:.2f}"
        reader = f"  bert {hit['score_bert']:.2f}" if has_odds else ""
        yield f"{number}. {hit['title'] or '(no title)'}  [{where}]  search {hit['score_search']:.2f}{vectors}{reader}"
        yield f"   {_marked(hit['snippet'], [(*mark, '*', '*') for mark in hit['marks']])}"
    yield f"{counted(len(hits), 'passage')} by order={result['order']} in {result['seconds']:.2f} s"


def _marked(text: str, marks: Sequence[tuple[int, int, str, str]]) -> str:
    """Put signs before and after some places of a text, (start, end, before, after); join its lines."""
    for start, end, before, after in reversed(marks):
        text = f"{text[:start]}{before}{text[start:end]}{after}{text[end:]}"
    return " ".join(text.split())
