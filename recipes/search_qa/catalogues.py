"""Sentence pairs and a dictionary from the message catalogues of programs, and English questions for translated passages.

    python recipes/search_qa/catalogues.py PACKAGES LANGUAGE questions.en.json passages.json OUT

PACKAGES is a folder that contains LANGUAGE/LC_MESSAGES/*.mo somewhere, such as /usr/share/locale, or unpacked Debian packages. OUT gets
train.tsv and dev.tsv with the columns source and target, words.tsv for `bertkit search glossary=`, and questions.jsonl: the questions
of the first file, with the contexts and answers of the second, which has the same ids (XQuAD). Messages of two words or more are pairs; shorter ones serve
the dictionary too.
"""

import gettext
import itertools
import json
import re
import sys
import zlib
from collections import Counter, defaultdict
from pathlib import Path

NUM_ROUNDS, MIN_PROB, MIN_COUNT, MAX_WORDS = 5, 0.15, 2, 40
_CODE = re.compile(r"[%{$\\|=@]|://|--")  # placeholders and options


def pairs(packages: Path, language: str) -> list[tuple[str, str]]:
    """Read the messages and their translations, without mark-up, keyboard marks and placeholders; each pair once."""
    found: dict[tuple[str, str], None] = {}
    for path in sorted(packages.rglob(f"{language}/LC_MESSAGES/*.mo")):
        with path.open("rb") as file:
            catalogue = gettext.GNUTranslations(file)._catalog  # type: ignore[attr-defined]
        for message, translation in catalogue.items():
            if not isinstance(message, str) or _CODE.search(message) or _CODE.search(translation):
                continue
            source, target = (
                " ".join(re.sub(r"<[^>]*>|[_&](?=\w)", "", text.split("\x04")[-1]).split())
                for text in (message, translation)
            )
            if source and target and source != target and len(source.split()) <= MAX_WORDS:
                found[source, target] = None
    return list(found)


def words(text: str) -> list[str]:
    """Return the words of a text, in lower case."""
    return re.findall(r"\w+", text.casefold())


def dictionary(texts: list[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the likely translations of every frequent word: IBM model 1 (Brown et al. 1993), p(target | source), by EM."""
    split = [(["", *words(source)], words(target)) for source, target in texts]  # "" generates words without a source
    counts = Counter(word for source, _ in split for word in source)
    prob: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(lambda: 1.0))
    for _ in range(NUM_ROUNDS):
        expected: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for source, target in split:
            for word in target:
                total = sum(prob[other][word] for other in source)
                for other in source:
                    expected[other][word] += prob[other][word] / total
        prob = {}
        for word, row in expected.items():
            total = sum(row.values())
            prob[word] = {other: count / total for other, count in row.items() if count / total > 1e-4}
        prob = defaultdict(dict, {word: defaultdict(float, row) for word, row in prob.items()})
    return {
        word: [other for other, value in sorted(row.items(), key=lambda pair: -pair[1])[:3] if value > MIN_PROB]
        for word, row in prob.items()
        if word.isalpha() and counts[word] >= MIN_COUNT
    }


def translated_passages(questions: str, passages: str) -> list[str]:
    """Return the questions of one file of XQuAD with the contexts and answers of another, as JSON lines."""
    texts, rows = {}, []
    for path in (questions, passages):
        for article in json.loads(Path(path).read_text(encoding="utf-8"))["data"]:
            for paragraph in article["paragraphs"]:
                for row in paragraph["qas"]:
                    text = texts.setdefault(row["id"], row["question"])
                    if path == passages:
                        rows.append(
                            {
                                "id": row["id"],
                                "question": text,
                                "context": paragraph["context"],
                                "answers": row["answers"],
                            }
                        )
    return [json.dumps(row, ensure_ascii=False) for row in rows]


def main(packages: str, language: str, questions: str, passages: str, output: str) -> None:
    """Write the files."""
    texts = pairs(Path(packages), language)
    sentences = [pair for pair in texts if len(pair[0].split()) >= 2]
    is_dev = [zlib.crc32(source.encode()) % 50 == 0 for source, _ in sentences]
    entries = sorted((word, " ".join(others)) for word, others in dictionary(texts).items() if others)
    files = {
        "train.tsv": [("source", "target"), *itertools.compress(sentences, (not dev for dev in is_dev))],
        "dev.tsv": [("source", "target"), *itertools.compress(sentences, is_dev)],
        "words.tsv": entries,
    }
    Path(output).mkdir(parents=True, exist_ok=True)
    for name, rows in files.items():
        write_text(Path(output, name), ["\t".join(row) for row in rows])
    write_text(Path(output, "questions.jsonl"), translated_passages(questions, passages))
    print(f"{len(sentences):,} pairs, {len(entries):,} words")


def write_text(path: Path, lines: list[str]) -> None:
    """Write lines."""
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
