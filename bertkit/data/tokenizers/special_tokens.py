"""The special tokens by their roles, and BERT's tokenizer in the library `tokenizers`."""

from dataclasses import dataclass

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import WordPiece as WordPieceDecoder
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing

PAD, UNK, CLS, SEP, MASK = SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MAX_INPUT_CHARS_PER_WORD = 100  # a longer word is [UNK]


@dataclass(frozen=True)
class SpecialTokens:
    """The special tokens by their roles; by default BERT's."""

    pad: str = PAD
    unk: str = UNK
    cls: str = CLS
    sep: str = SEP
    mask: str = MASK

    def settings(self) -> dict[str, str]:
        """Return the tokens by their names in files of `transformers`, such as mask_token."""
        return {f"{role}_token": token for role, token in sorted(vars(self).items())}


BERTS = SpecialTokens()


def bert_library(
    vocab: dict[str, int], lowercase: bool, strip_accents: bool | None, is_chinese: bool = True, unk: str = UNK
) -> Tokenizer:
    """Build the library's tokenizer with BERT's settings, without special tokens; `is_chinese`: each Chinese character is a word."""
    library = Tokenizer(WordPiece(vocab, unk_token=unk, max_input_chars_per_word=MAX_INPUT_CHARS_PER_WORD))
    library.normalizer = BertNormalizer(
        clean_text=True, handle_chinese_chars=is_chinese, strip_accents=strip_accents, lowercase=lowercase
    )
    library.pre_tokenizer = BertPreTokenizer()
    library.decoder = WordPieceDecoder(prefix="##", cleanup=True)
    return library


def plain_bert(vocab: dict[str, int], lowercase: bool, strip_accents: bool | None) -> Tokenizer:
    """Build BERT's tokenizer, with its special tokens."""
    library = bert_library(vocab, lowercase, strip_accents)
    library.post_processor = cls_and_sep(library, BERTS)
    library.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    return library


def cls_and_sep(library: Tokenizer, special: SpecialTokens) -> TemplateProcessing:
    """Return what adds the special tokens: `[CLS] A [SEP]` and `[CLS] A [SEP] B [SEP]`."""
    cls, sep = special.cls, special.sep
    return TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B:1 {sep}:1",
        special_tokens=[(token, library.token_to_id(token)) for token in (cls, sep)],
    )
