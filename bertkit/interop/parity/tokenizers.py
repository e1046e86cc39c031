"""The comparison of a directory's tokenizer with `transformers.AutoTokenizer`: ids, token types and offsets of some hundred probes.

The probes are made from the vocabulary, its added and special tokens, and what tokenizers differ in: letters and signs of many scripts,
white space, accents, emoji, words and texts that are too long. Offsets are those of the library without trimming, which takes the
first letter of a word after a space that the tokenizer only put there.
"""

import itertools
import os
import random
from collections.abc import Iterator
from pathlib import Path

from bertkit.base.errors import InputError
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.interop.load import load_tokenizer
from bertkit.interop.model_dir import has_tokenizer
from bertkit.interop.parity.reference import strictly
from bertkit.interop.parity.results import TEXTS

NUM_WORDS = 40  # of the vocabulary
SHORT = 9  # tokens to which probes are cut
HARD = (
    "", " ", "  two  spaces ", "\ttab\nline\r\nend\u00a0nbsp\u2003em\u3000wide\u2028line\u2029", "a\x00b\x07c\u200bd\ufeffe\ufffdf",
    "Naïve café, e\u0301cole, Ångström, İstanbul, ẞß ΣΑΣ ﬁ", "日本語のテキスト、中国话。𠀀𪜀 한국어", "中文English混合123", "العربية עִבְרִית हिन्दी ไทย",
    "😀👍🏽👨‍👩‍👧 ♥ ™ € … — “q” ‘q’", "a.b,c;d:e!f?g'h\"i(j)k[l]m{n}o/p\\q|r~s`t@u#v$w%x^y&z*0+1=2<3>4-5_6",
    "don't they're 3.14159 1,000 https://example.org/a?b=c&d#e", "##ing ##a ▁a Ġa ing## [mask] [cls] <S> < s > [ MASK ]", "\ue000a\u1734b\u08e2",
    "x" * 99, "x" * 100, "x" * 101, "y" * 150, "z" * 250, " ".join(["long"] * 300), "first one then two three four five six seven eight nine ten",
    "UPPER lower MiXeD ÀÉÎ àéî",
)  # fmt: skip


def tokenizer_fault(directory: Path) -> str | None:
    """Describe a difference between `AutoTokenizer` and bertkit's tokenizer; None if there is none, or no tokenizer of Hugging Face."""
    import transformers

    if not has_tokenizer(directory):
        return None
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        with strictly(directory, "the tokenizer"):
            theirs = transformers.AutoTokenizer.from_pretrained(
                directory, local_files_only=True, trust_remote_code=False
            )
        ours = load_tokenizer(directory)
    except InputError as error:
        return str(error)
    if len(theirs) != ours.vocab_size:
        return f"{directory}: the tokenizers have different sizes, {ours.vocab_size} and in transformers {len(theirs)}"
    special = [*vars(ours.words_by.special).values()]
    named = probes(ours, special, theirs.get_added_vocab())
    for second, cut in itertools.product((None, [*named[7:], *named[:7]]), (False, True)):
        longest = SHORT if cut else None
        expected, actual = (each(named, second, truncation=cut, max_length=longest) for each in (theirs, ours))
        types = [[0] * len(ids) for ids in expected["input_ids"]]
        for what, values in (
            ("input_ids", expected["input_ids"]),
            ("token_type_ids", expected.get("token_type_ids", types)),
        ):
            if differing := [
                number for number, pair in enumerate(zip(values, actual[what], strict=True)) if pair[0] != pair[1]
            ]:
                texts = [each[differing[0]] for each in (named, second) if each]
                return f"{directory}: the tokenizers differ on {texts!r:.200}{' cut' * cut}: {what}"
    untrimmed = type(theirs.backend_tokenizer).from_str(theirs.backend_tokenizer.to_str())
    untrimmed.post_processor = None
    untrimmed.no_truncation()
    untrimmed.no_padding()
    untrimmed.encode_special_tokens = theirs.split_special_tokens
    for text, own in zip(named, ours.encode_with_offsets(named), strict=True):
        one = untrimmed.encode(text, add_special_tokens=False)
        if own.ids != one.ids or _shown(text, own.offsets) != _shown(text, one.offsets):
            return f"{directory}: the tokenizers differ on {text!r:.200}: the places of its pieces"
    return None


def probes(tokenizer: Tokenizer, special: list[str], added: dict[str, int]) -> list[str]:
    """Return texts in which tokenizers may differ."""
    draw = random.Random(0)
    vocab = [token for token in tokenizer.vocab if token not in special]
    words = [draw.choice(vocab) for _ in range(NUM_WORDS if vocab else 0)]
    shown = [tokenizer.decode([tokenizer.vocab.index(word)]) for word in words]
    sentences = [" ".join(draw.choices(shown, k=5)) for _ in shown]
    names = list(dict.fromkeys([*special, *sorted(added)[:NUM_WORDS]]))
    return [*itertools.chain(*TEXTS), *HARD, *words, *sentences, *(each for name in names for each in _around(name))]


def _around(name: str) -> Iterator[str]:
    """Yield texts with a token: after and before white space, within a word, and in other letters."""
    yield from (
        name,
        f"one {name} two",
        f"one{name}two",
        f"  {name}  .",
        f"{name.lower()} {name.upper()}",
        f"é{name}中",
    )


def _shown(text: str, places: list[tuple[int, int]]) -> list[tuple[int, str] | None]:
    """Return where each piece begins, and its characters, without white space; None for white space alone."""
    parts = [(start, text[start:end]) for start, end in places]
    return [(start + len(part) - len(part.lstrip()), part.strip()) if part.strip() else None for start, part in parts]
