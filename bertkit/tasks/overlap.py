"""Score texts by what they share with their references: BLEU, chrF, ROUGE, exact match.

Each score is of a whole corpus with one reference a text, as the published programs give it with their own defaults:

| metric | program | key | what it is |
|---|---|---|---|
| bleu | sacrebleu `corpus_bleu`, tokenizer 13a, case kept | bleu | per cent |
| chrf | sacrebleu `corpus_chrf`, chrF2 | chrf | per cent |
| rouge | rouge-score, without a stemmer | rouge1, rouge2, rougeL | mean F of the texts, a share |
| exact_match_text | ours | exact | share of the texts that are their references, but for white space |

References are taken as the file has them. WordPiece does not give back every text to the letter, neither case where it
lower-cases nor each blank beside a mark, and this bounds a model's BLEU: 687 German messages that are encoded and decoded
have 76.4 with a cased vocabulary and 19.0 with an uncased one, without accents (tests/tasks/test_generation.py). rouge-score
knows the letters a to z and the digits alone, in lower case, and takes every other one for a blank.

The programs are the packages of the extra `generation`, imported when they are asked for.

Source: Papineni et al. 2002 and Post 2018 (BLEU); Popović 2015 (chrF); Lin 2004 (ROUGE).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Sequence
from typing import Any

from bertkit.errors import InputError

KEYS: dict[str, tuple[str, ...]] = {
    "bleu": ("bleu",),
    "chrf": ("chrf",),
    "rouge": ("rouge1", "rouge2", "rougeL"),
    "exact_match_text": ("exact",),
}
PACKAGES = {
    "bleu": ("sacrebleu", "sacrebleu"),
    "chrf": ("sacrebleu", "sacrebleu"),
    "rouge": ("rouge_score", "rouge-score"),
}


def require_packages(names: Iterable[str]) -> None:
    """Refuse metrics whose program is not installed, before anything is trained.

    Raises:
        InputError: naming the metric and the package.
    """
    for name in names:
        module, package = PACKAGES.get(name, ("", ""))
        if module and importlib.util.find_spec(module) is None:
            raise InputError(f"task.metrics: {name} needs {package}; pip install 'bertkit[generation]'")


def score_texts(name: str, predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Score texts against their references, one each, in the same order.

    Raises:
        InputError: the package of the metric is not installed.
    """
    require_packages([name])
    if name == "exact_match_text":
        pairs = zip(predictions, references, strict=True)
        return {"exact": sum(said.split() == true.split() for said, true in pairs) / len(references)}
    if name == "rouge":
        return _rouge(predictions, references)
    return {name: float(_scorer(name).corpus_score(list(predictions), [list(references)]).score)}


def signature(name: str) -> str | None:
    """Give what a score has to be reported with, in sacrebleu's words; None for the others.

    Source: Post 2018, section 4.
    """
    if name not in ("bleu", "chrf"):
        return None
    require_packages([name])
    scorer = _scorer(name)
    scorer.corpus_score(["a"], [["a"]])  # it tells the number of references
    return str(scorer.get_signature())


def _scorer(name: str) -> Any:
    from sacrebleu.metrics import BLEU, CHRF

    return BLEU() if name == "bleu" else CHRF()


def _rouge(predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    from rouge_score.rouge_scorer import RougeScorer

    scorer, totals = RougeScorer(list(KEYS["rouge"])), dict.fromkeys(KEYS["rouge"], 0.0)
    for said, true in zip(predictions, references, strict=True):
        for key, found in scorer.score(true, said).items():
            totals[key] += float(found.fmeasure)
    return {key: total / len(references) for key, total in totals.items()}
