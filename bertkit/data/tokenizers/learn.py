"""Learns a vocabulary from text: WordPiece, byte-level BPE or Unigram; the same text always gives the same one.

Source: Schuster and Nakajima 2012 and Devlin et al. 2019 (WordPiece); Sennrich et al. 2016 and Radford et al. 2019 (BPE); Kudo
2018 (Unigram).
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.decoders import Metaspace as MetaspaceDecoder
from tokenizers.models import BPE, Unigram, WordPiece
from tokenizers.normalizers import NFC, BertNormalizer, Replace, Sequence, Strip
from tokenizers.pre_tokenizers import BertPreTokenizer, ByteLevel, Metaspace, Split
from tokenizers.pre_tokenizers import Sequence as Steps
from tokenizers.trainers import BpeTrainer, UnigramTrainer, WordPieceTrainer

from bertkit.base.errors import InputError
from bertkit.base.text_files import parse_json
from bertkit.base.typed_settings import at
from bertkit.data.corpus.google_words import MAX_INPUT_CHARS_PER_WORD
from bertkit.data.corpus.tokenizer_file import NEVER, FileRules
from bertkit.data.corpus.word_rules import Rules, WordRules, rules_named
from bertkit.data.data_config import TokenizerConfig
from bertkit.data.tokenizers.alphabet import JOINERS, choose_alphabet, described, stripping
from bertkit.data.tokenizers.special_tokens import CLS, MASK, PAD, SEP, SPECIAL_TOKENS, UNK, SpecialTokens, cls_and_sep

Sentences = Callable[[], Iterable[str]]  # called for each pass over the text
LONGEST_RUN = 1000  # characters without a space that Unigram's trainer gets at once; its memory grows with their number
SCORE_DIGITS = 4  # of Unigram's scores; the trainer adds up words in a random order, which changes the 11th digit
PENALTY = (
    1e-4  # the trainer's steps between the scores of characters that are no pieces, which it numbers in a random order
)


class LearnedTokenizer(NamedTuple):
    """A learned tokenizer."""

    rules: WordRules
    notes: list[str]  # what a user should know of it


def learn_wordpiece(sentences: Sentences, config: TokenizerConfig, lowercase: bool, rules: Rules) -> LearnedTokenizer:
    """Learn a WordPiece vocabulary, of words by Hugging Face's rules.

    `sentences` is called twice, for the characters and for the words. The size includes special tokens and single characters. A
    pair of pieces can become one piece if it occurs at least `min_frequency` times. Accents are by default stripped from lower-cased
    text, as in BERT, unless it needs the marks of a script. Raises InputError if the text has no words, the size has no room for
    its characters, or the rules do not allow `strip_accents`.
    """
    made = rules_named(rules, lowercase, config.strip_accents)
    counts = Counter[str]()
    for sentence in sentences():
        counts.update(sentence)
    strips, notes = _strips_accents(counts, config, lowercase, rules)
    learner = Tokenizer(WordPiece(unk_token=UNK))
    normalizer = BertNormalizer(clean_text=True, handle_chinese_chars=True, lowercase=lowercase, strip_accents=strips)
    learner.normalizer, learner.pre_tokenizer = normalizer, BertPreTokenizer()
    # The library numbers characters in the random order of a hash map, so ties between merges differ from run to run.
    # Special tokens keep their order, so the characters are passed as special tokens.
    normal = Counter[str]()
    for character, count in counts.items():
        for normalized in "".join(normalizer.normalize_str(character).split()):
            normal[normalized] += count
    alphabet = choose_alphabet(normal, config.vocab_size, len(SPECIAL_TOKENS), 2, config.coverage)
    first_tokens = [*SPECIAL_TOKENS, *alphabet.characters, *(f"##{character}" for character in alphabet.characters)]
    trainer = WordPieceTrainer(
        # the library allocates so many entries; a merge joins two pieces, so there cannot be more tokens than this
        vocab_size=min(config.vocab_size, len(first_tokens) + normal.total()),
        min_frequency=config.min_frequency,
        special_tokens=first_tokens,
        limit_alphabet=0,
        show_progress=False,
        continuing_subword_prefix="##",
    )
    learner.train_from_iterator((_without_long_words(sentence, normalizer) for sentence in sentences()), trainer)
    notes += [*_joiners(counts), *alphabet.notes, *_shortage(learner, config)]
    return LearnedTokenizer(made(dict(learner.get_vocab()), lowercase, strips), notes)


class _Choice(NamedTuple):
    strip_accents: bool | None  # None: exactly when text is lower-cased
    notes: list[str]


def _strips_accents(counts: Counter[str], config: TokenizerConfig, lowercase: bool, rules: Rules) -> _Choice:
    """Choose whether accents are stripped: by default if text is lower-cased, unless it needs the marks of a script.

    Google's rules have no choice.
    """
    total, found = sum(count for character, count in counts.items() if not character.isspace()), stripping(counts)
    strips, way_out = config.strip_accents, "tokenizer.strip_accents=false keeps them"
    if rules == "google":
        strips, way_out = lowercase, "tokenizer.lowercase=false keeps them"
    if strips is None and lowercase and found.marks.total() > (1 - config.coverage) * total:
        why = f"stripping them, as in BERT, would damage {described(found.marks, total)} of scripts that need them"
        return _Choice(False, [f"accents and marks are kept: {why}; tokenizer.strip_accents=true strips them"])
    strips = lowercase if strips is None else strips
    changed = found.accents + found.marks
    notes = [f"accents are stripped from {described(changed, total)}, as in BERT; {way_out}"]
    return _Choice(None if strips == lowercase else strips, notes if strips and changed else [])


def _joiners(counts: Counter[str]) -> list[str]:
    """Say that BERT removes the joiners of a text, if it has any."""
    number = sum(counts[one] for one in JOINERS)
    return [
        f"{number:,} joiners without width are removed, as in BERT; tokenizer=unigram and tokenizer=bpe keep them"
    ] * bool(number)


def _shortage(learner: Tokenizer, config: TokenizerConfig) -> list[str]:
    """Say why a vocabulary made by merges is smaller than asked for, if it is."""
    if learner.get_vocab_size() == config.vocab_size:
        return []
    least = f"{max(config.min_frequency, 1)} times (tokenizer.min_frequency)"
    return [f"fewer than tokenizer.vocab_size={config.vocab_size}: no other pair of pieces occurs at least {least}"]


def _without_long_words(sentence: str, normalizer: BertNormalizer) -> str:
    """Remove words that are so long that they become [UNK]; the library's time grows with the square of their length."""
    if len(sentence) <= MAX_INPUT_CHARS_PER_WORD:
        return sentence
    runs = sentence.split()
    for place, run in enumerate(runs):
        if len(run) > MAX_INPUT_CHARS_PER_WORD:
            words = BertPreTokenizer().pre_tokenize_str(normalizer.normalize_str(run))
            runs[place] = " ".join(word for word, _ in words if len(word) <= MAX_INPUT_CHARS_PER_WORD)
    return " ".join(runs)


def learn_byte_pairs(sentences: Sentences, config: TokenizerConfig) -> LearnedTokenizer:
    """Learn a byte-level BPE.

    It knows every text. A space belongs to the word after it, and there is one before each text, so that a word has the same
    pieces wherever it is. Special tokens are those of ModernBERT (Warner et al. 2024, section 2.1.1). Raises InputError if the
    size has no room for the bytes.
    """
    first, alphabet, size = [UNK, CLS, SEP, PAD, MASK], sorted(ByteLevel.alphabet()), config.vocab_size
    if (least := len(first) + len(alphabet)) > size:
        wrong = f"tokenizer.vocab_size={size} has no room for {len(alphabet)} bytes and {len(first)} special tokens"
        raise InputError(f"{wrong}; set it to {2 * least} or more")
    learner = Tokenizer(BPE())
    learner.normalizer, learner.pre_tokenizer = NFC(), ByteLevel(add_prefix_space=True)
    learner.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=size,
        min_frequency=config.min_frequency,
        special_tokens=_special(first),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    learner.train_from_iterator(sentences(), trainer)
    return LearnedTokenizer(_rules(learner), _shortage(learner, config))


def learn_unigram(sentences: Sentences, config: TokenizerConfig) -> LearnedTokenizer:
    """Learn a Unigram model of words with a mark of the space before them; white space of any length is one space.

    `sentences` is called twice, for the characters and for the words. Raises InputError if the text has no words, or the size has no room for its characters.
    """
    normalizer = Sequence([NFC(), Replace(Regex(r"\s+"), " "), Strip()])
    counts = Counter[str]()
    for sentence in sentences():
        counts.update(normalizer.normalize_str(sentence))
    del counts[" "]
    alphabet = choose_alphabet(counts, config.vocab_size, len(SPECIAL_TOKENS) + 1, 1, config.coverage)
    others = str.maketrans(dict.fromkeys(counts.keys() - {*alphabet.characters}, NEVER))

    def words() -> Iterator[str]:
        for sentence in sentences():
            text = normalizer.normalize_str(sentence).translate(others)
            yield text if len(text) <= LONGEST_RUN else re.sub(rf"([^ ]{{{LONGEST_RUN}}})", rf"\1{NEVER}", text)

    learner = Tokenizer(Unigram())
    learner.pre_tokenizer = Steps([Metaspace(), Split(NEVER, "removed")])
    trainer = UnigramTrainer(
        vocab_size=config.vocab_size, special_tokens=[*SPECIAL_TOKENS], unk_token=UNK, show_progress=False
    )
    learner.train_from_iterator(words(), trainer)
    pieces = _in_order(at(parse_json(learner.to_str()), "model.vocab"))
    made = Tokenizer(Unigram(pieces, unk_id=SPECIAL_TOKENS.index(UNK)))
    made.normalizer, made.pre_tokenizer, made.decoder = normalizer, Metaspace(), MetaspaceDecoder()
    made.add_special_tokens(_special(SPECIAL_TOKENS))
    few = f"fewer than tokenizer.vocab_size={config.vocab_size}: the text needs no other pieces"
    return LearnedTokenizer(_rules(made), [*alphabet.notes, *([few] if len(pieces) < config.vocab_size else [])])


def _in_order(pieces: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """Return the pieces and scores of the trainer without what is random in them: their last digits, and equal ones' order.

    It also numbers the characters that are no pieces in a random order, from the lowest score on; here they all have that score.
    """
    learned = pieces[len(SPECIAL_TOKENS) :]
    lowest = min(score for _, score in learned)
    end = lowest + PENALTY * sum(len(piece) == 1 for piece, _ in learned)
    scores = {piece: lowest if len(piece) == 1 and score < end else score for piece, score in learned}
    rounded = [(piece, round(score, SCORE_DIGITS)) for piece, score in scores.items()]
    return [*((token, 0.0) for token in SPECIAL_TOKENS), *sorted(rounded, key=lambda item: (-item[1], item[0]))]


def _special(names: Iterable[str]) -> list[AddedToken]:
    """Return special tokens; [MASK] takes the space before it, as a word does."""
    return [AddedToken(name, lstrip=name == MASK, special=True, normalized=False) for name in names]


def _rules(library: Tokenizer) -> FileRules:
    special = SpecialTokens(PAD, UNK, CLS, SEP, MASK)
    library.post_processor = cls_and_sep(library, special)
    return FileRules(library, parse_json(library.to_str()), special, {})
