"""Random tokenizers of every part that the library `tokenizers` has: the ids, token types and offsets of `transformers`, or a refusal.

A seed makes a directory of a model with any normalizer, pre-tokenizer, model, post-processor and decoder, added tokens with any flags,
and settings in its other files. A few of them are in the default run, three hundred in the slow one.
"""

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as LibraryTokenizer

from bertkit.base.errors import InputError
from bertkit.interop.load import load_tokenizer
from bertkit.interop.parity.tokenizers import HARD, tokenizer_fault

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
LETTERS = "abcdefghijklmnopqrstuvwxyzABCÀé中文▁Ġ.,'-[]<>/0123"
WORDS = ["the", "cat", "dog", "one", "two", "long", "##ing", "##a", "▁a", "▁the", "Ġa", "in", "an"]
NAMES = ([*("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")], ["<pad>", "<unk>", "<s>", "</s>", "<mask>"])
PROBES = [*HARD, "the cat [E1] dog", "the[E1]cat <e2>dog", "one <mask> [MASK] two", " E3 e3 ", "a\n\nb the cat, in an"]
NORMALIZERS = {
    "none": lambda draw: None,
    "bert": lambda draw: normalizers.BertNormalizer(
        clean_text=draw.random() < 0.7, handle_chinese_chars=draw.random() < 0.7, strip_accents=draw.choice([None, True, False]),
        lowercase=draw.random() < 0.7,
    ),
    "lowercase": lambda draw: normalizers.Lowercase(),
    "nfc": lambda draw: normalizers.NFC(),
    "nfd": lambda draw: normalizers.NFD(),
    "nfkc": lambda draw: normalizers.NFKC(),
    "nfkd": lambda draw: normalizers.NFKD(),
    "nmt": lambda draw: normalizers.Nmt(),
    "strip": lambda draw: normalizers.Strip(left=draw.random() < 0.5, right=draw.random() < 0.5),
    "accents": lambda draw: normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]),
    "prepend": lambda draw: normalizers.Prepend("▁"),
    "replace": lambda draw: normalizers.Replace(draw.choice([" ", Regex("\\s+"), "x"]), draw.choice(["▁", " ", "yy", ""])),
    "bytes": lambda draw: normalizers.ByteLevel(),
}  # fmt: skip
PRE_TOKENIZERS = {
    "none": lambda draw: None,
    "bert": lambda draw: pre_tokenizers.BertPreTokenizer(),
    "whitespace": lambda draw: pre_tokenizers.Whitespace(),
    "split": lambda draw: pre_tokenizers.WhitespaceSplit(),
    "bytes": lambda draw: pre_tokenizers.ByteLevel(add_prefix_space=draw.random() < 0.5, use_regex=draw.random() < 0.7),
    "metaspace": lambda draw: pre_tokenizers.Metaspace(
        prepend_scheme=draw.choice(["always", "first", "never"]), split=draw.random() < 0.7
    ),
    "punctuation": lambda draw: pre_tokenizers.Punctuation(draw.choice(["isolated", "removed", "merged_with_previous"])),
    "digits": lambda draw: pre_tokenizers.Digits(individual_digits=draw.random() < 0.5),
    "scripts": lambda draw: pre_tokenizers.UnicodeScripts(),
    "delimiter": lambda draw: pre_tokenizers.CharDelimiterSplit(draw.choice(" a")),
    "fixed": lambda draw: pre_tokenizers.FixedLength(length=draw.randint(1, 5)),
    "pattern": lambda draw: pre_tokenizers.Split(
        Regex(draw.choice([r"\s+", r"[a-c]", r"\w+"])),
        draw.choice(["isolated", "removed", "merged_with_previous", "merged_with_next", "contiguous"]),
        invert=draw.random() < 0.2,
    ),
}  # fmt: skip
DECODERS = {
    "none": lambda draw: None,
    "word_piece": lambda draw: decoders.WordPiece(prefix="##", cleanup=draw.random() < 0.5),
    "bytes": lambda draw: decoders.ByteLevel(),
    "bpe": lambda draw: decoders.BPEDecoder(),
    "metaspace": lambda draw: decoders.Metaspace(),
    "ctc": lambda draw: decoders.CTC(),
    "fuse": lambda draw: decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
    "strip": lambda draw: decoders.Strip(" ", 1, 0),
}  # fmt: skip


def one_of(draw: random.Random, parts: Any, group: Any) -> Any:
    """A part, or a sequence of two."""
    made = [part for part in (parts[draw.choice(list(parts))](draw) for _ in range(2)) if part is not None]
    return group(made) if len(made) == 2 and draw.random() < 0.3 else next(iter(made), None)


def model(draw: random.Random, special: list[str]) -> Any:
    kind = draw.choice(["WordPiece", "WordPiece", "BPE", "Unigram", "WordLevel"])
    tokens = list(dict.fromkeys([*special, *BYTES, *LETTERS, *(f"##{letter}" for letter in LETTERS), *WORDS]))
    vocab = {token: number for number, token in enumerate(tokens)}
    match kind:
        case "WordPiece":
            return models.WordPiece(
                vocab, unk_token=special[1], max_input_chars_per_word=draw.choice([100, 100, 12, 200])
            )
        case "BPE":
            merges = [("t", "h"), ("th", "e"), ("i", "n"), ("a", "n")]
            for left, right in merges:
                vocab.setdefault(left + right, len(vocab))
            unk = draw.choice([None, special[1]])
            return models.BPE(
                vocab, merges, unk_token=unk, fuse_unk=draw.random() < 0.5, ignore_merges=draw.random() < 0.3
            )
        case "Unigram":
            pieces = [(token, -float(len(vocab) - number) / 50) for token, number in vocab.items()]
            return models.Unigram(pieces, unk_id=1, byte_fallback=False)
    return models.WordLevel(vocab, unk_token=special[1])


def post_processor(draw: random.Random, special: list[str]) -> Any:
    cls, sep = (special[2], 2), (special[3], 3)
    template = draw.choice([f"$A:0 {sep[0]}:0 $B:1 {sep[0]}:1", f"$A {sep[0]} $B {sep[0]}", f"$A {sep[0]} {sep[0]} $B {sep[0]}",
                            f"$A {sep[0]} {cls[0]}:1 $B:1 {sep[0]}:1"])  # fmt: skip
    own = processors.TemplateProcessing(
        single=f"{cls[0]} $A {sep[0]}", pair=f"{cls[0]} {template}", special_tokens=[cls, sep]
    )
    trimming = processors.ByteLevel(trim_offsets=draw.random() < 0.5)
    return draw.choice([own, own, own, processors.BertProcessing(sep, cls), processors.Sequence([trimming, own]), None,
                        processors.RobertaProcessing(sep, cls, trim_offsets=draw.random() < 0.5), trimming])  # fmt: skip


def added(draw: random.Random, content: str) -> AddedToken:
    flags = {name: draw.random() < 0.3 for name in ("single_word", "lstrip", "rstrip", "special")}
    return AddedToken(content, **flags, normalized=draw.random() < 0.5)


def random_model(seed: int, folder: Path) -> None:
    draw = random.Random(seed)
    special = draw.choice(NAMES)
    library = LibraryTokenizer(model(draw, special))
    library.normalizer = one_of(draw, NORMALIZERS, normalizers.Sequence) or library.normalizer
    library.pre_tokenizer = one_of(draw, PRE_TOKENIZERS, pre_tokenizers.Sequence) or library.pre_tokenizer
    library.decoder = DECODERS[draw.choice(list(DECODERS))](draw) or library.decoder
    library.post_processor = post_processor(draw, special) or library.post_processor
    if draw.random() < 0.8:
        library.add_special_tokens(special)
    library.add_tokens([added(draw, name) for name in ("[E1]", "<e2>", "E3", " a ") if draw.random() < 0.4])
    if draw.random() < 0.2:
        library.enable_truncation(50, direction=draw.choice(["left", "right"]))
    if draw.random() < 0.2:
        library.enable_padding(direction=draw.choice(["left", "right"]), pad_token=special[0])
    roles = dict(zip(("pad", "unk", "cls", "sep", "mask"), special, strict=True))
    named = {f"{role}_token": name for role, name in roles.items() if draw.random() < 0.9}
    settings: dict[str, Any] = {}
    for key, values in {
        "truncation_side": ["left", "right"], "padding_side": ["left", "right"], "split_special_tokens": [True, False],
        "model_input_names": [["input_ids", "attention_mask"], ["input_ids", "token_type_ids", "attention_mask"]],
        "additional_special_tokens": [["[E1]"], ["[E4]", "E3"]], "do_lower_case": [True, False], "model_max_length": [17, 1e30],
        "tokenize_chinese_chars": [True, False], "strip_accents": [True, False], "clean_up_tokenization_spaces": [True, False],
        "image_token": ["<image>"],
    }.items():  # fmt: skip
        if draw.random() < 0.2:
            settings[key] = draw.choice(values)
    library.save(str(folder / "tokenizer.json"))
    files = {
        "tokenizer_config.json": {**named, **settings},
        "config.json": {"model_type": draw.choice(["bert", "bert", "modernbert"])},
    }
    if draw.random() < 0.75:
        files["tokenizer_config.json"]["tokenizer_class"] = draw.choice(
            [
                "PreTrainedTokenizerFast",
                "TokenizersBackend",
                "PreTrainedTokenizerFast",
                "BertTokenizer",
                "BertTokenizerFast",
                "NoSuchTokenizer",
            ]
        )
    if draw.random() < 0.2:
        files["special_tokens_map.json"] = {"additional_special_tokens": ["<e5>"], **named}
    if draw.random() < 0.1:
        number = library.get_vocab_size()
        files["added_tokens.json"] = {"<e6>": number, "E7": number + draw.choice([1, 1, 2])}
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))


def outcome(seed: int, folder: Path) -> str:
    """What became of a random tokenizer: equal, or refused in one line, by both or by bertkit alone."""
    random_model(seed, folder)
    try:
        theirs = transformers.AutoTokenizer.from_pretrained(folder)
    except Exception as error:  # of every kind
        theirs = error
    try:
        ours = load_tokenizer(folder)
    except InputError as error:
        refusal = error.args
    else:
        refusal = ()
    if refusal:
        assert len(refusal) == 1, refusal
        assert "\n" not in refusal[0], refusal
        return "refused by both" if isinstance(theirs, Exception) else "refused: alone"
    assert not isinstance(theirs, Exception), f"seed {seed}: transformers refuses it: {theirs!r:.200}"
    fault = tokenizer_fault(folder)
    if fault is not None and "cleanly" in fault:
        return "warned of by transformers"
    assert fault is None, f"seed {seed}: {fault}"
    for second in (None, PROBES[::-1]):
        expected, actual = theirs(PROBES, second), ours(PROBES, second)
        assert expected["input_ids"] == actual["input_ids"], seed
    if not theirs.clean_up_tokenization_spaces:
        for ids in actual["input_ids"]:
            assert theirs.decode(ids) == ours.decode(ids), seed
    return f"equal: {type(ours.words_by).__name__}"


@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.slow) for first in range(1, 50))])
def test_a_random_tokenizer_is_that_of_transformers_or_refused(first: int, tmp_path: Path) -> None:
    outcomes = Counter[str]()
    for seed in range(6 * first, 6 * first + 6):
        folder = tmp_path / str(seed)
        folder.mkdir()
        outcomes[outcome(seed, folder).partition(":")[0]] += 1
    assert sum(outcomes.values()) == 6
    assert outcomes["equal"] > 0
