"""The rules by which a text becomes words, Hugging Face's or Google's, and the library's tokenizers that follow them."""

from abc import ABC, abstractmethod

import numpy as np
from tokenizers import AddedToken, Encoding, Tokenizer
from tokenizers.decoders import WordPiece as WordPieceDecoder
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer, WhitespaceSplit
from tokenizers.processors import TemplateProcessing

from bertkit.data.corpus.google_words import MAX_INPUT_CHARS_PER_WORD, split_words
from bertkit.data.corpus.long_texts import PART_CHARACTERS, TextPieces, encode_long
from bertkit.data.corpus.vocabulary import CLS, SEP, SPECIAL_TOKENS, UNK


class WordRules(ABC):
    """How texts become words, and words pieces."""

    inputs: Tokenizer  # of the library, for `prepared` texts with special tokens around them

    @abstractmethod
    def prepared(self, texts: list[str]) -> list[str]:
        """Return the texts as the library's tokenizer takes them."""

    @abstractmethod
    def encode(self, sentences: list[str]) -> list[Encoding]:
        """Encode the sentences of a corpus, without special tokens; "[MASK]" is ordinary text, as in the original."""

    @abstractmethod
    def pieces(self, texts: list[str]) -> list[TextPieces]:
        """Return the pieces of each text, without special tokens, with their places in the text."""


class HuggingFaceRules(WordRules):
    """The rules of the library, and so of every program that uses an exported model."""

    def __init__(self, vocab: dict[str, int], lowercase: bool, strip_accents: bool | None) -> None:
        self.inputs = hugging_face_backend(vocab, lowercase, strip_accents)
        self.of_corpus = hugging_face_backend(vocab, lowercase, strip_accents)
        self.of_corpus.encode_special_tokens = True

    def prepared(self, texts: list[str]) -> list[str]:
        """Return the texts."""
        return texts

    def encode(self, sentences: list[str]) -> list[Encoding]:
        """Encode the sentences of a corpus, without special tokens."""
        return self.of_corpus.encode_batch_fast(sentences, add_special_tokens=False)

    def pieces(self, texts: list[str]) -> list[TextPieces]:
        """Return the pieces of each text; a long text is encoded in parts."""
        short = [text for text in texts if len(text) <= PART_CHARACTERS]
        encodings = self.of_corpus.encode_batch(short, add_special_tokens=False)
        whole = (TextPieces(encoding.ids, encoding.offsets, encoding.word_ids) for encoding in encodings)
        return [next(whole) if len(text) <= PART_CHARACTERS else encode_long(text, self.of_corpus) for text in texts]


class GoogleRules(WordRules):
    """The rules of google-research/bert."""

    def __init__(self, vocab: dict[str, int], lowercase: bool) -> None:
        self.lowercase = lowercase
        # for the output of `split_words`, in which "[MASK]" is ordinary text
        self.inputs = Tokenizer(WordPiece(vocab, unk_token=UNK, max_input_chars_per_word=MAX_INPUT_CHARS_PER_WORD))
        self.inputs.pre_tokenizer = WhitespaceSplit()
        self.inputs.post_processor = _cls_and_sep(vocab)

    def prepared(self, texts: list[str]) -> list[str]:
        """Return the words of each text, separated by spaces."""
        return [split_words(text, self.lowercase) for text in texts]

    def encode(self, sentences: list[str]) -> list[Encoding]:
        """Encode the sentences of a corpus, without special tokens."""
        return self.inputs.encode_batch_fast(self.prepared(sentences), add_special_tokens=False)

    def pieces(self, texts: list[str]) -> list[TextPieces]:
        """Return the pieces of each text, with their places in the text, not in its words."""
        words = self.prepared(texts)
        encodings = self.inputs.encode_batch(words, add_special_tokens=False)
        return [self._located(*row) for row in zip(texts, words, encodings, strict=True)]

    def _located(self, text: str, words: str, encoding: Encoding) -> TextPieces:
        # `split_words` replaces a character by as many characters when it is alone as inside a text
        lengths = {character: len(split_words(character, self.lowercase)) for character in set(text)}
        origin: list[int] = np.repeat(np.arange(len(text)), [lengths[character] for character in text]).tolist()
        assert len(origin) == len(words), "a character alone and inside a text becomes as many characters"
        offsets = [(origin[start], origin[end - 1] + 1) for start, end in encoding.offsets]
        return TextPieces(encoding.ids, offsets, encoding.word_ids)


def hugging_face_backend(vocab: dict[str, int], lowercase: bool, strip_accents: bool | None) -> Tokenizer:
    """Build the library's tokenizer with BERT's settings."""
    backend = Tokenizer(WordPiece(vocab, unk_token=UNK, max_input_chars_per_word=100))
    backend.normalizer = BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=strip_accents, lowercase=lowercase
    )
    backend.pre_tokenizer = BertPreTokenizer()
    backend.post_processor = _cls_and_sep(vocab)
    backend.decoder = WordPieceDecoder(prefix="##", cleanup=True)
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    return backend


def _cls_and_sep(vocab: dict[str, int]) -> TemplateProcessing:
    return TemplateProcessing(
        single=f"{CLS} $A {SEP}",
        pair=f"{CLS} $A {SEP} $B:1 {SEP}:1",
        special_tokens=[(CLS, vocab[CLS]), (SEP, vocab[SEP])],
    )
