"""The characters of a new vocabulary: which ones it has, and which ones lose their accents when text is lower-cased."""

import itertools
import re
import unicodedata
from collections import Counter
from typing import NamedTuple

from bertkit.base.errors import InputError

MOST_COMMON = 1000  # characters that an alphabet has in any case, if there is room; rarer ones only for the coverage
SHOWN = 5  # characters in a message

# marks (Mn) of no script: accents, and the selectors of emoji; the marks of a script, such as vowel signs, are letters of its words
_is_accent = re.compile(
    "[\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe00-\ufe2f\U000e0100-\U000e01ef]"
).match
JOINERS = (
    "\u200c\u200d"  # zero width, between letters: in Persian, Malayalam and others they change a word; in emoji, too
)
_is_syllable = re.compile("[\uac00-\ud7a3]").match  # of Korean, which stripping takes apart


class Alphabet(NamedTuple):
    """The characters of a new vocabulary."""

    characters: list[str]  # sorted
    notes: list[str]  # what a user should know of the others


def choose_alphabet(counts: Counter[str], vocab_size: int, others: int, each: int, coverage: float) -> Alphabet:
    """Choose the most frequent characters: as many as `coverage` asks for, and the first 1,000 of them if there is room.

    A vocabulary of `vocab_size` tokens has `others`, and `each` tokens for a character. Raises InputError if the text has no
    characters, or `vocab_size` has no room for the coverage.
    """
    if not counts:
        raise InputError("no words in the corpus to learn a vocabulary from; check corpus.path")
    most, total = counts.most_common(), counts.total()
    covered = list(itertools.accumulate(count for _, count in most))
    needed = 1 + next(place for place, number in enumerate(covered) if number >= coverage * total)
    room = (vocab_size - others) // each
    if needed > room:
        whose = "of the corpus" if needed == len(most) else f"that are {100 * coverage:g} % of the corpus"
        wrong = f"tokenizer.vocab_size={vocab_size} has no room for the {needed:,} characters {whose}"
        raise InputError(f"{wrong}; set it to {2 * (others + each * needed)} or more, or lower tokenizer.coverage")
    usual = max(needed, min(MOST_COMMON, len(most)))
    number = usual if usual <= room else needed
    share = f"{number:,} of {len(most):,} characters, {100 * covered[number - 1] / total:.3f} % of the text"
    left_out = f"the alphabet has {share}; the others become [UNK] (tokenizer.coverage=1 keeps all)"
    return Alphabet(sorted(character for character, _ in most[:number]), [left_out] if number < len(most) else [])


class Stripping(NamedTuple):
    """What BERT's lower-casing does to the characters of a text beside their case."""

    accents: Counter[str]  # letters that lose an accent, and accents
    marks: Counter[str]  # marks that a script needs, letters that lose one, and Korean syllables


def stripping(counts: Counter[str]) -> Stripping:
    """Find the characters that stripping accents changes: it decomposes the text (NFD) and removes marks (category Mn)."""
    accents, marks = Counter[str](), Counter[str]()
    for character, count in counts.items():
        stripped = [part for part in unicodedata.normalize("NFD", character) if unicodedata.category(part) == "Mn"]
        if _is_syllable(character) or not all(map(_is_accent, stripped)):
            marks[character] = count
        elif any("\u0300" <= part <= "\u036f" for part in stripped):
            accents[character] = count
    return Stripping(accents, marks)


def described(characters: Counter[str], total: int) -> str:
    """Return how many of a text's characters these are, with the most frequent ones."""
    first = (one for one, _ in characters.most_common(SHOWN))
    shown = " ".join(f"◌{one}" if unicodedata.category(one) == "Mn" else one for one in first)
    return f"{characters.total():,} of {total:,} characters ({shown})"
