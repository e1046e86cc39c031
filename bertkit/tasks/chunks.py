"""Tags that mark chunks, such as names: IOB1, IOB2 and BIOES, read one way, written three.

    words   Sue   and  Bob   Bob   in   New   York   City
    iob1    I-PER O    I-PER B-PER O    I-LOC I-LOC  I-LOC     B- only after a chunk of the same type
    iob2    B-PER O    B-PER B-PER O    B-LOC I-LOC  I-LOC     B- begins every chunk
    bioes   S-PER O    S-PER S-PER O    B-LOC I-LOC  E-LOC     S- is a chunk of one word, E- ends one of several

BILOU is BIOES with L- and U- for E- and S-. Reading never fails on the order of tags: an I-, E- or L- that continues
nothing begins a chunk, as for the CoNLL evaluation (conlleval; Ramshaw and Marcus 1995, Ratinov and Roth 2009).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

Chunk = tuple[str, int, int]  # type, first word, one past the last
_MARKED = re.compile("[BIESLU]-")


def parts_of(tag: str) -> tuple[str, str] | None:
    """Cut a tag into prefix and type: `B-PER` -> B, PER; `O` -> O and nothing. None if it does not parse."""
    if tag == "O":
        return "O", ""
    prefix, dash, kind = tag.partition("-")
    return (prefix, kind) if dash and kind and prefix in ("B", "I", "E", "S", "L", "U") else None


def chunks_of(tags: Sequence[str]) -> list[Chunk]:
    """Read the chunks of a sentence, whatever the scheme.

    Raises:
        ValueError: a tag does not parse; its message is the tag.
    """
    chunks: list[Chunk] = []
    start, open_kind = 0, None
    for place, tag in enumerate(tags):
        parts = parts_of(tag)
        if parts is None:
            raise ValueError(tag)
        prefix, kind = parts
        continues = prefix in ("I", "E", "L") and kind == open_kind
        if not continues:
            if open_kind is not None:
                chunks.append((open_kind, start, place))
            start, open_kind = place, None if prefix == "O" else kind
        if prefix in ("E", "L", "S", "U"):
            chunks.append((kind, start, place + 1))
            open_kind = None
    if open_kind is not None:
        chunks.append((open_kind, start, len(tags)))
    return chunks


def tags_of_chunks(chunks: Iterable[Chunk], num_words: int, scheme: str) -> list[str]:
    """Write chunks as one tag for each of `num_words` words, in "iob1", "iob2" or "bioes"."""
    tags = ["O"] * num_words
    before: Chunk | None = None
    for kind, start, end in chunks:
        for place in range(start, end):
            tags[place] = f"I-{kind}"
        if scheme == "bioes":
            tags[start] = f"B-{kind}"
            tags[end - 1] = f"E-{kind}" if end - start > 1 else f"S-{kind}"
        elif scheme == "iob2" or (before is not None and before[2] == start and before[0] == kind):
            tags[start] = f"B-{kind}"
        before = (kind, start, end)
    return tags


def convert(tags: Sequence[str], scheme: str) -> list[str]:
    """Write the tags of a sentence in another scheme.

    Raises:
        ValueError: a tag does not parse.
    """
    return tags_of_chunks(chunks_of(tags), len(tags), scheme)


def first_break(tags: Sequence[str], scheme: str) -> int | None:
    """Find the first word whose tag is not what the scheme writes there; None if all are."""
    spelling = str.maketrans("LU", "ES") if scheme == "bioes" else {}
    for place, (tag, expected) in enumerate(zip(tags, convert(tags, scheme), strict=True)):
        if tag[0].translate(spelling) + tag[1:] != expected:
            return place
    return None


def detect_scheme(sentences: Sequence[Sequence[str]]) -> str:
    """Say which scheme sentences are written in; where none fits all of them, the one that fits most.

    Tags that fit several, such as B- of single words, are IOB2. Where there is neither an O nor a prefix on every tag,
    they mark no chunks: "none". Sentences with a tag that does not parse do not count.
    """
    distinct = {tag for tags in sentences for tag in tags}
    marked = {tag for tag in distinct if _MARKED.match(tag)}
    if distinct != {"O"} and not (marked and ("O" in distinct or marked == distinct)):
        return "none"
    whole = [tags for tags in sentences if all(map(parts_of, tags))]
    if any(tag[0] in "ESLU" for tag in marked):
        return "bioes"
    num_breaks = {s: sum(first_break(tags, s) is not None for tags in whole) for s in ("iob2", "iob1")}
    return min(num_breaks, key=lambda scheme: num_breaks[scheme])
