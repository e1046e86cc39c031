"""The tokenizer: the same vocabulary from the same text, and the same ids as Hugging Face's from real ones."""

import copy
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import make_text, real_data

from bertkit.base.errors import InputError
from bertkit.data.corpus.tokenizer import SPECIAL_TOKENS, Rules, Tokenizer, load_tokenizer, train_wordpiece, wordpiece

REAL = ("bert-base-uncased", "bert-base-cased", "bert-base-multilingual-cased", "bert-base-chinese")
HARD = [
    "",
    " ",
    "Hello, World!",
    "unaffable runningly UNAFFABLE",
    "Ünïcödé naïve café résumé Ångström",
    "e\u0301 n\u0303 A\u030a",
    "[CLS] is text [SEP] [MASK] [UNK] [PAD] [mask]",
    "a[MASK]b",
    "##ing ing## #",
    "\ufeffBOM \u200bzero\u200dwidth\u00a0nbsp\u3000ideographic\u2028line\u2029para",
    "tab\tnew\nline\r\nreturn\x0bvertical\x0cform\x00null\x7fdel\x85nel",
    "\ufffd \ue000 \U000f0000",
    "x" * 100,
    "x" * 101,
    "日本語のテキスト、中国話。한국어 텍스트",
    "𠀀𪜀 中文English混合123",
    "İstanbul ıI ẞß ς Σ ΣΑΣ ﬁ ǅ",
    "العربية ١٢٣ עִבְרִית हिन्दी ไทย",
    "😀👍🏽👨‍👩‍👧 ♥ ™ © ½ € £ ₿ … — – “q” ‘q’ «q»",
    "a.b,c;d:e!f?g'h\"i(j)k[l]m{n}o/p\\q|r~s`t@u#v$w%x^y&z*0+1=2<3>4-5_6",
    "3.14159 1,000,000 0xDEADBEEF 1e-12 https://example.org/a?b=c&d#e me@x.org",
    "don't won't I'm they're o'clock 's-Hertogenbosch",
    "a " * 700,
]
PAIRS = HARD[::-1]


def test_a_vocabulary_of_ties_is_learned() -> None:
    """Words of a few letters, each as frequent as the others."""
    words = ["".join(word) for word in itertools.product("abcdeéüß中文", repeat=3)]
    vocab = train_wordpiece(lambda: iter([" ".join(words)] * 2), 211, True, 2).vocab
    assert len(vocab) == 211
    assert vocab[:5] == list(SPECIAL_TOKENS)
    assert not {"é", "ü"} & set(vocab)
    assert {"中", "##a"} < set(vocab)
    assert len([token for token in vocab if len(token.removeprefix("##")) > 1]) > 100  # merges


@pytest.mark.parametrize(("lowercase", "ids_alike"), [(True, True), (False, False)])
def test_lowercase_tokenizer_merges_case(lowercase: bool, ids_alike: bool) -> None:
    tokenizer = train_wordpiece(lambda: iter(["Alpha alpha BETA beta é"] * 3), 101, lowercase, 2)
    upper, lower = tokenizer.encode_document(["Alpha", "alpha"])
    assert (upper == lower) == ids_alike
    assert tokenizer.facts.unk not in upper + lower
    assert any(token != token.lower() for token in tokenizer.vocab[5:]) == (not lowercase)


@pytest.mark.parametrize(("sentences", "vocab_size", "message"), [
    ([], 101, "no words in the corpus to learn a vocabulary from"),
    ([" \t"], 101, "no words in the corpus"),
    (["".join(map(chr, range(0x4E00, 0x4E80)))], 200, "vocab_size=200 has no room for the 128 characters of the corpus"),
])  # fmt: skip
def test_corpus_too_small_for_vocabulary_is_refused(sentences: list[str], vocab_size: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        train_wordpiece(lambda: iter(sentences), vocab_size, True, 2)


@pytest.mark.parametrize("special", SPECIAL_TOKENS)
def test_a_special_token_in_a_corpus_is_text(special: str) -> None:
    letters = [*"[]acdeklmnpsu", *(f"##{letter}" for letter in "acdeklmnpsu")]
    tokenizer = wordpiece({token: n for n, token in enumerate([*SPECIAL_TOKENS, *letters])}, lowercase=True)
    own = tokenizer.vocab.index(special)
    assert tokenizer(special)["input_ids"] == [2, own, 3]
    for ids in tokenizer.encode_document([special, f"ka {special} a", f"a{special}a"]):
        assert min(ids) >= len(SPECIAL_TOKENS)
        assert {tokenizer.vocab.index("["), tokenizer.vocab.index("]")} < set(ids)


def test_it_is_text_for_a_copy_too() -> None:
    letters = [*"[]acdeklmnpsu", *(f"##{letter}" for letter in "acdeklmnpsu")]
    tokenizer = wordpiece({token: n for n, token in enumerate([*SPECIAL_TOKENS, *letters])}, lowercase=True)
    assert copy.deepcopy(tokenizer).encode_document(["[MASK]"]) == tokenizer.encode_document(["[MASK]"])


# ---- loading


def write_vocab(path: Path, tokens: list[str], end: str = "\n") -> Path:
    path.write_bytes("".join(token + end for token in tokens).encode())
    return path


@pytest.mark.parametrize(("tokens", "message"), [
    (["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a"], r"vocab.txt: vocabulary of 5 tokens has no \[MASK\]"),
    (["a", "b"], r"has no \[PAD\] \[UNK\] \[CLS\] \[SEP\] \[MASK\]"),
    ([*SPECIAL_TOKENS, "a", "b", "a"], r'vocab.txt:8: duplicate of token "a" on line 6'),
    ([*SPECIAL_TOKENS, "a", "[CLS]"], r'vocab.txt:7: duplicate of token "\[CLS\]" on line 3'),
    ([], "has no"),
])  # fmt: skip
def test_vocabularies_that_bert_cannot_use(tmp_path: Path, tokens: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_tokenizer(write_vocab(tmp_path / "vocab.txt", tokens))


def test_files_that_are_no_vocabulary(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none: no such file"):
        load_tokenizer(tmp_path / "none")
    with pytest.raises(InputError, match=r"no vocab.txt or tokenizer.json in this directory"):
        load_tokenizer(tmp_path)
    (tmp_path / "vocab.txt").write_bytes(b"[PAD]\n\xff\n")
    with pytest.raises(InputError, match=r"vocab.txt: not UTF-8 \(byte 6\)"):
        load_tokenizer(tmp_path / "vocab.txt")
    for content, message in [
        ("{}", "model.type=None"),
        ("[1]", "model.type=None"),
        ("{", "not JSON"),
        ('{"model": {"type": "BPE", "vocab": {"a": 0}}, "normalizer": null}', "model.type=BPE"),
    ]:
        (tmp_path / "tokenizer.json").write_text(content)
        with pytest.raises(InputError, match=message):
            load_tokenizer(tmp_path / "tokenizer.json")
    with pytest.raises(InputError, match="its ids are not 0 to 5"):
        wordpiece({**{token: n for n, token in enumerate(SPECIAL_TOKENS)}, "a": 7}, lowercase=True)


@pytest.mark.parametrize(("tokens", "settings", "asked", "lowercase"), [
    (["a", "b"], None, None, True),
    (["a", "B"], None, None, False),
    (["a", "[unused1]", "<S>"], None, None, True),
    (["a", "##B"], None, None, False),
    (["a", "É"], None, None, False),
    (["a", "B"], None, True, True),
    (["a", "b"], {"do_lower_case": False}, None, False),
    (["a", "B"], {"do_lower_case": True}, None, True),
    (["a", "b"], {"do_lower_case": False}, True, True),
    (["a", "b"], {}, None, True),
])  # fmt: skip
def test_lowercase_is_detected_from_files_and_vocabulary(
    tmp_path: Path, tokens: list[str], settings: Any, asked: bool | None, lowercase: bool
) -> None:
    write_vocab(tmp_path / "vocab.txt", [*SPECIAL_TOKENS, *tokens])
    if settings is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert load_tokenizer(tmp_path, asked).lowercase is lowercase


def test_line_endings_and_blank_ends(tmp_path: Path) -> None:
    tokens = [*SPECIAL_TOKENS, "a", "##b"]
    for end, tail in (("\n", ""), ("\r\n", ""), ("\n", "\n\n")):
        path = write_vocab(tmp_path / "vocab.txt", tokens, end)
        path.write_bytes(path.read_bytes() + tail.encode())
        assert load_tokenizer(path).vocab == tokens


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("strip_accents", [None, True, False])
def test_saved_tokenizer_is_loaded_unchanged(tmp_path: Path, lowercase: bool, strip_accents: bool | None) -> None:
    vocab = {token: n for n, token in enumerate([*SPECIAL_TOKENS, *"aéeAÉ", "##a", "##é"])}
    tokenizer = wordpiece(vocab, lowercase, strip_accents)
    for name, content in tokenizer.files(64).items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        again = load_tokenizer(path)
        assert (again.vocab, again.lowercase, again.strip_accents) == (tokenizer.vocab, lowercase, strip_accents)
        assert again.files(64) == tokenizer.files(64)


# ---- calling


def test_tokenizer_call_is_as_by_hand() -> None:
    tokenizer = wordpiece({token: n for n, token in enumerate([*SPECIAL_TOKENS, "a", "b", "##c"])}, lowercase=True)
    assert tokenizer("a bc", "B") == {
        "input_ids": [2, 5, 6, 7, 3, 6, 3],
        "token_type_ids": [0, 0, 0, 0, 0, 1, 1],
        "attention_mask": [1] * 7,
    }
    assert tokenizer(["a", "a b z"], padding=True) == {
        "input_ids": [[2, 5, 3, 0, 0], [2, 5, 6, 1, 3]],
        "token_type_ids": [[0] * 5] * 2,
        "attention_mask": [[1, 1, 1, 0, 0], [1] * 5],
    }
    assert tokenizer("a b a b", truncation=True, max_length=4)["input_ids"] == [2, 5, 6, 3]
    assert tokenizer("a b a b")["input_ids"] == [2, 5, 6, 5, 6, 3]  # nothing stays switched on
    arrays = tokenizer(["a", "b"], return_tensors="np")["input_ids"]
    assert arrays.tolist() == [[2, 5, 3], [2, 6, 3]]
    assert torch.equal(tokenizer("a", return_tensors="pt")["input_ids"], torch.tensor([[2, 5, 3]]))
    assert isinstance(arrays, np.ndarray)


@pytest.mark.parametrize(("arguments", "options", "message"), [
    ((["a", "b"], ["c"]), {}, "text_pair: 1 texts; expected 2"),
    (("a",), {"truncation": True}, "truncation=True needs max_length="),
    ((["a", "a b"],), {"return_tensors": "pt"}, "set padding=True"),
    (("a",), {"return_tensors": "tf"}, "return_tensors='tf': expected 'pt' or 'np'"),
])  # fmt: skip
def test_calls_that_cannot_work(tokenizer: Tokenizer, arguments: tuple, options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        tokenizer(*arguments, **options)


def test_decode_gives_the_text_back(tokenizer: Tokenizer) -> None:
    for sentence in [s for document in make_text(3) for s in document][:11]:
        ids = tokenizer(sentence)["input_ids"]
        assert tokenizer.decode(ids, skip_special_tokens=True) == sentence
        assert tokenizer.decode(ids) == f"[CLS] {sentence} [SEP]"


# ---- beside the reference implementations


@pytest.fixture(scope="module", params=REAL)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Any]:
    """A tokenizer of a published vocabulary, and Hugging Face's from the files that it writes."""
    from transformers import AutoTokenizer

    tokenizer = load_tokenizer(real_data("vocab", request.param, "vocab.txt"))
    folder = tmp_path_factory.mktemp("tokenizer")
    for name, content in tokenizer.files(512).items():
        (folder / name).write_text(content, encoding="utf-8")
    return tokenizer, AutoTokenizer.from_pretrained(folder)


CALLS: list[dict[str, Any]] = [
    {},
    {"padding": True},
    *({"truncation": True, "max_length": length} for length in (5, 17, 512)),
    {"truncation": True, "max_length": 31, "padding": True},
]


@pytest.mark.parametrize("options", CALLS, ids=str)
def test_tokenizer_call_equals_hugging_face(both: tuple[Tokenizer, Any], options: dict[str, Any]) -> None:
    ours, theirs = both
    for arguments in [(HARD,), (HARD, PAIRS)]:
        expected = theirs(*arguments, **options, return_token_type_ids=True)
        assert ours(*arguments, **options) == {name: expected[name] for name in ours("a")}
    for text, pair in list(zip(HARD, PAIRS, strict=True))[:9]:
        assert ours(text, pair, **options)["input_ids"] == theirs(text, pair, **options)["input_ids"]


def test_hugging_face_takes_the_same_settings(both: tuple[Tokenizer, Any]) -> None:
    ours, theirs = both
    assert theirs.model_max_length == 512
    assert len(theirs) == ours.vocab_size
    for name in ("pad", "unk", "cls", "sep", "mask"):
        assert getattr(theirs, f"{name}_token_id") == getattr(ours.facts, name)


def reference(name: str) -> list[dict[str, Any]]:
    lines = real_data("tokenization", f"reference.{name}.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 79
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("name", REAL)
def test_every_row_of_the_original_by_googles_rules(name: str) -> None:
    tokenizer = load_tokenizer(real_data("vocab", name), rules="google")
    rows = reference(name)
    texts = [row["text"] for row in rows]
    ids = tokenizer.encode_document(texts)
    assert [row["text"] for row, got in zip(rows, ids, strict=True) if got != row["ids"]] == []
    assert [[tokenizer.vocab[token] for token in got] for got in ids] == [row["tokens"] for row in rows]
    cls, sep = tokenizer.facts.cls, tokenizer.facts.sep
    assert tokenizer(texts)["input_ids"] == [[cls, *row["ids"], sep] for row in rows]
    assert sum(map(len, ids)) > 1_000


@pytest.mark.parametrize("name", REAL)
def test_every_row_by_hugging_faces_rules(name: str) -> None:
    tokenizer = load_tokenizer(real_data("vocab", name))
    rows = reference(name)
    assert sum(row["hf_same"] for row in rows) == 77
    for row in rows:
        expected = row["tokens"] if row["hf_same"] else row["hf_tokens"]
        assert [tokenizer.vocab[token] for token in tokenizer(row["text"])["input_ids"][1:-1]] == expected, row["text"]


@pytest.mark.parametrize("name", REAL)
def test_a_published_vocabulary_says_whether_it_is_cased(name: str) -> None:
    is_lowercase = name == "bert-base-uncased"  # the Chinese file has no upper-case letters, and is not
    assert load_tokenizer(real_data("vocab", name)).lowercase is is_lowercase
    assert load_tokenizer(real_data("vocab", name), lowercase=not is_lowercase).lowercase is not is_lowercase


# ---- Google's rules


def letters(rules: Any = "google", lowercase: bool = True) -> Tokenizer:
    tokens = [*SPECIAL_TOKENS, *"[]ab", "ask", "m", "##ask", "##x", "x"]
    return wordpiece({token: n for n, token in enumerate(tokens)}, lowercase, rules=rules)


@pytest.mark.parametrize(("text", "google", "hugging_face"), [
    ("x" * 100, ["x", *["##x"] * 99], ["x", *["##x"] * 99]),
    ("x" * 101, ["x", *["##x"] * 100], ["[UNK]"]),
    ("x" * 200, ["x", *["##x"] * 199], ["[UNK]"]),
    ("x" * 201, ["[UNK]"], ["[UNK]"]),
    ("a[MASK]b", ["a", "[", "m", "##ask", "]", "b"], ["a", "[MASK]", "b"]),
    ("A\ue000", ["[UNK]"], ["a"]),
])  # fmt: skip
def test_google_and_hugging_face_rules_are_as_by_hand(text: str, google: list[str], hugging_face: list[str]) -> None:
    for rules, expected in (("google", google), ("hugging_face", hugging_face)):
        tokenizer = letters(rules)
        assert [tokenizer.vocab[token] for token in tokenizer(text)["input_ids"]] == ["[CLS]", *expected, "[SEP]"]


def test_a_call_by_googles_rules_pads_truncates_and_pairs() -> None:
    tokenizer = letters()
    assert tokenizer("a b a", "B", truncation=True, max_length=6) == {
        "input_ids": [2, 7, 8, 3, 8, 3],
        "token_type_ids": [0, 0, 0, 0, 1, 1],
        "attention_mask": [1] * 6,
    }
    assert tokenizer(["a", "b a"], padding=True)["input_ids"] == [[2, 7, 3, 0], [2, 8, 7, 3]]
    assert tokenizer("a b a")["input_ids"] == [2, 7, 8, 7, 3]


def test_impossible_tokenizer_rules_are_refused() -> None:
    with pytest.raises(InputError, match="rules='goggle': expected hugging_face or google"):
        letters("goggle")
    vocab = {token: n for n, token in enumerate(SPECIAL_TOKENS)}
    with pytest.raises(InputError, match=r"strip_accents=False: .*tokenizer.rules=hugging_face"):
        wordpiece(vocab, True, False, "google")
    assert wordpiece(vocab, True, True, "google").rules == "google"


def test_a_dataset_says_its_rules_and_an_exported_model_has_hugging_faces(tmp_path: Path) -> None:
    for name, content in letters().files(64).items():
        (tmp_path / name).write_text(content)
    assert load_tokenizer(tmp_path).rules == "hugging_face"
    (tmp_path / "rules.json").write_text('"google"\n')
    assert load_tokenizer(tmp_path).rules == "google"
    assert load_tokenizer(tmp_path, rules="hugging_face").rules == "hugging_face"


OFFSETS = [
    # text -> characters of its pieces by Hugging Face's rules, and by Google's where they differ
    ("a AX", [(0, 1), (2, 3), (3, 4)], None),
    ("  a\u200b\tb", [(2, 3), (5, 6)], None),
    ("[MASK]a", [(0, 6), (6, 7)], [(0, 1), (1, 2), (2, 5), (5, 6), (6, 7)]),  # as in transformers, and in run_squad.py
    ("\u00e1x", [(0, 1), (1, 2)], None),  # composed, and its accent stripped
    ("a\u0301 b", [(0, 1), (3, 4)], None),  # the accent stands by itself
    ("a\u4e00b", [(0, 1), (1, 2), (2, 3)], None),
    ("b\U0002b820a", [(0, 3)], [(0, 1), (1, 2), (2, 3)]),  # one unknown word; by Google's rules three
    ("", [], None),
]


@pytest.mark.parametrize(("text", "expected", "by_google"), OFFSETS)
def test_offsets_of_pieces_are_as_by_hand(text: str, expected: list[tuple[int, int]], by_google: Any) -> None:
    for rules, offsets in (("hugging_face", expected), ("google", by_google or expected)):
        tokenizer = letters(rules)
        (actual,) = tokenizer.encode_with_offsets([text])
        assert actual.offsets == offsets
        assert actual.ids == tokenizer(text)["input_ids"][1:-1]


@pytest.mark.parametrize("name", REAL)
def test_offsets_of_pieces_are_as_in_the_reference(name: str) -> None:
    rows = [row for row in reference(name) if row["hf_same"]]
    texts = [row["text"] for row in rows]
    compared = 0
    for rules in ("hugging_face", "google"):
        tokenizer = load_tokenizer(real_data("vocab", name, "vocab.txt"), rules=rules)  # type: ignore[arg-type]
        for row, actual in zip(rows, tokenizer.encode_with_offsets(texts), strict=True):
            if actual.ids == row["ids"]:
                compared += len(actual.ids)
                assert [list(each) for each in actual.offsets] == row["hf_offsets"], row["text"]
    assert compared > 3000


@pytest.mark.parametrize("rules", ["hugging_face", "google"])
def test_words_of_running_text_are_located(rules: Rules) -> None:
    letters = [chr(ord("a") + n) for n in range(26)]
    vocab = [*SPECIAL_TOKENS, *letters, *(f"##{letter}" for letter in letters)]
    own = wordpiece({token: number for number, token in enumerate(vocab)}, lowercase=True, rules=rules)
    texts = ["", " \u200b", "It's  U.S. caf\u00e9,cafe\u0301 \u5317\u4eac [MASK] cafe\u0941"]
    name = ["[MASK]"] if rules == "hugging_face" else ["[", "MASK", "]"]
    expected = ["It", "'", "s", "U", ".", "S", ".", "café", ",", "café", "北", "京", *name, "cafe\u0941"]
    actual = [
        [text[word.start : word.end] for word in words] for text, words in zip(texts, own.words(texts), strict=True)
    ]
    assert actual == [[], [], expected]
