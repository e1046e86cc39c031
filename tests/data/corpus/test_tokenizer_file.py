"""Tokenizers of any kind: as the library has them, with special tokens by their roles, and a byte-level BPE learned here."""

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from tokenizer_files import KINDS, NAMES, TEXTS, saved_model, trained
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import processors

from bertkit.base.errors import InputError
from bertkit.data.corpus.encoded_documents import encode_documents
from bertkit.data.corpus.tokenizer import load_tokenizer, train_tokenizer
from bertkit.data.data_config import TokenizerConfig
from bertkit.tasks.feature import text_feature
from bertkit.tasks.spans.examples import SpanExample, _starts, make_features
from bertkit.tasks.task_config import SpansConfig


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_model(tmp_path_factory.mktemp("model") / request.param, request.param)


def saved_tokenizer(folder: Path, kind: str) -> Path:
    roles = {f"{role}_token": name for role, name in NAMES.items()}
    transformers.PreTrainedTokenizerFast(tokenizer_object=trained(kind), **roles).save_pretrained(folder)
    return folder


def test_it_does_what_transformers_does(folder: Path) -> None:
    ours, theirs = load_tokenizer(folder), transformers.AutoTokenizer.from_pretrained(folder)
    assert ours.vocab == theirs.convert_ids_to_tokens(range(len(theirs)))
    facts = ours.facts
    assert [facts.cls, facts.pad, facts.sep, facts.unk, facts.mask] == [
        theirs.convert_tokens_to_ids(name) for name in NAMES.values()
    ]
    for text, pair in zip(TEXTS[::7], TEXTS[1::7], strict=False):
        for own in ((text,), (text, pair), (f"a {NAMES['mask']} b",)):
            encoded = ours(*own)
            assert {name: encoded[name] for name in theirs(*own)} == {k: [*ids] for k, ids in theirs(*own).items()}
        assert ours.decode(ours(text)["input_ids"]) == theirs.decode(theirs(text)["input_ids"])
    batch = ours(TEXTS[:5], padding=True, truncation=True, max_length=9, return_tensors="np")
    reference = theirs(TEXTS[:5], padding=True, truncation=True, max_length=9, return_tensors="np")
    assert np.array_equal(batch["input_ids"], reference["input_ids"])


def test_pieces_have_their_places_without_the_space_before_them(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    texts = [f"{text}  {NAMES['sep']} end" for text in TEXTS[-20:]]
    for text, pieces in zip(texts, tokenizer.encode_with_offsets(texts), strict=True):
        shown = [text[start:end] for start, end in pieces.offsets]
        assert all(piece == piece.strip() for piece in shown)
        covered = {place for start, end in pieces.offsets for place in range(start, end)}
        assert covered == {place for place, character in enumerate(text) if not character.isspace()}
        assert pieces.ids == tokenizer(text)["input_ids"][1:-1]
    (spaces,) = tokenizer.encode_with_offsets([" kan   lon "])
    assert {(start, end) for start, end in spaces.offsets if start >= end} <= {
        (0, 0),
        (4, 4),
        (10, 10),
    }  # white space alone
    starts = _starts(spaces.offsets)
    assert not {0, 4, 5, 6} & {*starts}  # no answer begins with white space, or ends with it
    assert not {1, 5, 6, 7, 11} & {end for _, end in spaces.offsets}


def test_words_are_made_of_the_pieces_of_a_text(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    texts = ["Kan (lon's), mir\n東京 \u0939\u093f <s> x ", "  \n kan", " ", ""]
    (words, later, *without), (pieces, *_) = tokenizer.words(texts), tokenizer.encode_with_offsets(texts)
    assert [number for word in words for number in word.ids] == pieces.ids
    shown = [texts[0][word.start : word.end] for word in words]
    signs = ["'", "s", "),"] if folder.name == "word_piece" else ["'", "s", ")", ","]  # as its pre-tokenizer cuts
    assert shown == ["Kan", "(", "lon", *signs, "mir", "東京", "\u0939\u093f", "<s>", "x"]
    assert [texts[1][word.start : word.end] for word in later] == ["kan"]
    assert without == [[], []]


@pytest.mark.parametrize("is_split", [False, True])
def test_the_name_of_a_special_token_in_an_input_is_read_as_in_transformers(
    folder: Path, is_split: bool, tmp_path: Path
) -> None:
    """In questions, contexts, words to tag and minimal pairs; in a corpus and in the texts that a decoder learns it is text."""
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"split_special_tokens": is_split}))
    tokenizer, theirs = load_tokenizer(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    around = "kan {0} lon", "{0}", "kan{0}lon", "{0} lon", "kan  {0}.", "{0}{0}"
    names = [name for role, name in NAMES.items() if role != "unk"]  # which other characters are, too
    texts, special = [text.format(name) for name in names for text in around], {*theirs.convert_tokens_to_ids(names)}
    for own in (tokenizer, copy.deepcopy(tokenizer)):
        for text, pieces in zip(texts, own.encode_with_offsets(texts), strict=True):
            assert pieces.ids == theirs(text)["input_ids"][1:-1]
            assert is_split or not special.isdisjoint(pieces.ids)
            assert pieces.ids == own(text)["input_ids"][1:-1]
            assert [number for word in own.words([text])[0] for number in word.ids] == pieces.ids
            assert special.isdisjoint(own.encode_document([text])[0])
        for name, ids in zip(names, own.encode_words(names), strict=True):
            assert is_split or ids == [own.vocab.index(name)]


TOKENS = [
    "▁kan",
    "ing",
    "▁(",
    "P",
    "'",
    "s",
    "日本",
    "語",
    "PC",
    "▁",
    "\u093f",
    "<0xE6>",
    "<0x9D>",
    "<0x0A>",
    "x",
    "ー",
    "ไทย",
]
BEGIN = ["▁kan", "▁(", "P", "'", "s", "日本", "語", "PC", "▁", "<0x0A>", "x", "ー", "ไทย"]


def test_a_word_ends_with_a_sign_and_is_a_piece_in_scripts_without_spaces(tmp_path: Path) -> None:
    """As whole words are masked; a vowel sign and the bytes of a rare character continue a word."""
    tokenizer = load_tokenizer(saved_tokenizer(tmp_path, "gemma"))
    begins = tokenizer.words_by.borders_of(TOKENS).begins(range(len(TOKENS)))
    assert [token for token, first in zip(TOKENS, begins, strict=True) if first] == BEGIN
    (pieces,) = tokenizer.encode_with_offsets(["kan (lonten) mir"])  # which is one word for the library
    words: dict[int | None, str] = {}
    for number, word in zip(pieces.ids, pieces.word_ids, strict=True):
        words[word] = words.get(word, "") + tokenizer.vocab[number]
    assert [*words.values()] == ["kan", "▁", "<0x28>", "lonten", "<0x29>", "▁mir"]  # ( and ) are rare


@pytest.mark.parametrize("before", [True, False])
def test_there_is_one_space_before_a_word_and_none_in_japanese(before: bool, tmp_path: Path) -> None:
    """Llama's normalizer puts one before each text."""
    normalizers = [{"type": "Prepend", "prepend": "▁"}] if before else []
    saved_tokenizer(tmp_path, "gemma")
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    content["normalizer"] = {"type": "Sequence", "normalizers": [*normalizers, content["normalizer"]]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = load_tokenizer(tmp_path)
    words = [[tokenizer.vocab[number] for number in ids] for ids in tokenizer.encode_words(["kan", "東"])]
    assert words == [["▁kan"], [*["▁"] * before, "<0xE6>", "<0x9D>", "<0xB1>"]]
    assert tokenizer.encode_flat(["kan"])[0].tolist() == [tokenizer.vocab.index("▁kan")]


def test_a_word_has_the_pieces_that_it_has_inside_a_text(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    (words,) = [text.split() for text in TEXTS[3:4]]
    together = tokenizer.encode_document([" ".join(["kan", *words])])[0]
    alone = [token for ids in tokenizer.encode_words(words) for token in ids]
    assert together[-len(alone) :] == alone
    begins = [ids[0] for ids in tokenizer.encode_words(words)]
    assert not tokenizer.facts.borders.continues[begins].any()
    inner = [token for ids in tokenizer.encode_words(words) for token in ids[1:]]
    assert inner
    assert tokenizer.facts.borders.continues[[token for token in inner if tokenizer.vocab[token].isalnum()]].all()


def test_the_bytes_of_a_character_are_in_one_word() -> None:
    """Those after the first have signs such as \u00b4 and \u00bf for names, and the first one of Hebrew is \u00d7."""
    tokenizer = train_tokenizer(BPE, lambda: ["only letters, (signs) - no others"], False, "hugging_face")
    for ids in tokenizer.encode_words(["C\u00f4te", "\u05e9\u05dc\u05d5\u05dd", "\u6771\u4eac", "na\u00efve"]):
        assert tokenizer.facts.borders.continues[ids].tolist() == [False] + [True] * (len(ids) - 1)
    signs = [tokenizer.vocab.index(sign) for sign in ("(", ",", "-", "\u010a")]  # the last one is a new line
    assert not tokenizer.facts.borders.continues[signs].any()


def test_a_copy_and_what_is_written_are_the_same(folder: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(folder)
    for name, content in tokenizer.files(97).items():
        (tmp_path / name).write_text(content)
    again = load_tokenizer(tmp_path)
    assert again.files(97) == tokenizer.files(97)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert {**theirs(*TEXTS[:2]), "token_type_ids": [0] * len(theirs(*TEXTS[:2])["input_ids"])} == tokenizer(*TEXTS[:2])
    text = f"{TEXTS[0]} {NAMES['mask']}"
    for other in (again, copy.deepcopy(tokenizer)):
        assert other(text) == tokenizer(text)
        assert other.encode_document([text]) == tokenizer.encode_document([text])


def templates(single: str, pair: str) -> processors.PostProcessor:
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=[("<s>", 0), ("</s>", 2)])


def written(folder: Path, kind: str, change: Any = None, **settings: Any) -> Path:
    """A file without settings beside it, but for those named."""
    library = trained(kind)
    content = json.loads(library.to_str())
    if change is not None:
        change(content)
    (folder / "tokenizer.json").write_text(json.dumps(content))
    if settings:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def test_special_tokens_are_found_by_their_roles(tmp_path: Path) -> None:
    facts = load_tokenizer(written(tmp_path, "byte_level")).facts  # by the post-processor, and by usual names
    assert [facts.cls, facts.pad, facts.sep, facts.unk, facts.mask] == [0, 1, 2, 3, 4]
    swapped = {"pad_token": "!", "mask_token": {"content": '"', "lstrip": False}}
    facts = load_tokenizer(written(tmp_path, "byte_level", **swapped)).facts
    assert (facts.pad, facts.mask) == (5, 6)
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "special_tokens_map.json").write_text(
        '{"mask_token": "#", "pad_token": ["!"], "cls_token": {"lstrip": 1}}'
    )
    facts = load_tokenizer(tmp_path).facts
    assert (facts.mask, facts.pad, facts.cls) == (7, 1, 0)  # what is no name of a token is not looked at


def test_a_file_without_special_tokens_gets_those_of_bert(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(written(tmp_path, "unigram", lambda content: content.update(post_processor=None)))
    assert tokenizer("", "")["input_ids"] == [0, 2, 2]
    assert tokenizer("kan", "kan")["token_type_ids"][-1] == 1


def processed_by(post_processor: processors.PostProcessor) -> Callable[[dict[str, Any]], None]:
    library = trained("byte_level")
    library.post_processor = post_processor
    own = json.loads(library.to_str())["post_processor"]
    return lambda content: content.update(post_processor=own)


@pytest.mark.parametrize(("post_processor", "between"), [
    (processors.RobertaProcessing(("</s>", 2), ("<s>", 0)), "</s> </s>"),
    (templates("<s> $A </s>", "<s> $A </s> <s>:1 $B:1 </s>:1"), "</s> <s>"),  # of Llama
    (templates("<s> $A </s>", "<s> $A </s> $B </s>"), "</s>"),
])  # fmt: skip
def test_the_post_processor_says_what_is_around_and_between_texts(
    post_processor: processors.PostProcessor, between: str, tmp_path: Path
) -> None:
    """Also where other tokens have the names of [CLS] and [SEP], as in Japanese ModernBERTs."""
    named = {"cls_token": "!", "sep_token": "#", "pad_token": "$"}
    written(tmp_path, "byte_level", processed_by(post_processor), **named)
    tokenizer = load_tokenizer(tmp_path)
    vocab = tokenizer.vocab
    assert (vocab[tokenizer.facts.cls], vocab[tokenizer.facts.sep], vocab[tokenizer.facts.pad]) == ("<s>", "</s>", "$")
    first, second = tokenizer.encode_document(["kan", "lon ten"])
    feature = text_feature(tokenizer, 0, first, second, None, 99)
    assert feature.input_ids == tokenizer("kan", "lon ten")["input_ids"]
    assert " ".join(vocab[number] for number in feature.input_ids[1 + len(first) : -1 - len(second)]) == between
    cut = text_feature(tokenizer, 0, first * 40, second * 40, None, 30)
    assert len(cut.input_ids) == len(cut.token_type_ids) == 30
    settings = SpansConfig(9, 9, n_best=1, max_answer_length=9, null_score_diff_threshold=0.0, is_always_answered=True)
    (question,) = make_features([SpanExample("0", "kan", "lon ten", None)], tokenizer, 40, settings)
    assert question.input_ids == feature.input_ids
    config = json.loads(tokenizer.files(97)["tokenizer_config.json"])
    assert {name: config[name] for name in named} == named


def without_mask(content: dict[str, Any]) -> None:
    for token in content["added_tokens"]:
        token["content"] = token["content"].replace("<mask>", "<masc>")
    content["model"]["vocab"]["<masc>"] = content["model"]["vocab"].pop("<mask>")


@pytest.mark.parametrize(("change", "asked", "message"), [
    (processed_by(templates("<s> $A", "<s> $A </s> $B </s>")), {}, "the post_processor makes <s> of an empty text; bertkit's models read <s> </s>"),
    (processed_by(templates("<s> $A </s>", "<s> $A </s> $B")), {}, "the post_processor makes <s> </s> of 2 empty texts; bertkit's models read <s> </s> </s>"),
    (without_mask, {}, 'no special token for mask; name it in tokenizer_config.json, such as "mask_token": "[MASK]"'),
    (lambda content: content.pop("model"), {}, "model.type=None: not a tokenizer of the library"),
    (None, {"lowercase": True}, "tokenizer.lowercase=true: its own normalizer decides; leave it out"),
    (None, {"rules": "google"}, "Google's rules and instances (segments=google) are for BERT's WordPiece, not for BPE"),
])  # fmt: skip
def test_what_cannot_be_read_is_refused(tmp_path: Path, change: Any, asked: dict[str, Any], message: str) -> None:
    written(tmp_path, "byte_level", change)
    with pytest.raises(InputError) as caught:
        load_tokenizer(tmp_path, **asked)
    assert str(caught.value).startswith(str(tmp_path))
    assert message in str(caught.value)


def test_a_file_that_some_texts_would_stop_is_refused(tmp_path: Path) -> None:
    written(tmp_path, "unigram", lambda content: content["model"].update(unk_id=None))
    with pytest.raises(InputError, match=r"model\.type=Unigram: not a tokenizer of the library `tokenizers`"):
        load_tokenizer(tmp_path)


# ---- learned


BPE = TokenizerConfig(path=None, vocab_size=340, min_frequency=2, lowercase=None, rules="auto", kind="bpe")


def test_a_byte_level_bpe_knows_every_text() -> None:
    tokenizer = train_tokenizer(BPE, lambda: iter(TEXTS), True, "hugging_face")
    assert tokenizer.vocab_size == 340
    assert tokenizer.vocab[:5] == ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    for text in (*TEXTS[-3:], "日本 Ünïcödé \U0001f600 [MASK]"):
        ids = tokenizer.encode_document([text])[0]
        assert tokenizer.decode(ids) == f" {text}"
        assert min(ids) >= 5
    assert tokenizer.encode_document(["Kan"]) != tokenizer.encode_document(["kan"])
    assert tokenizer.encode_words(["kan"]) == tokenizer.encode_document(["kan"])
    encoded = encode_documents([TEXTS[:3]], tokenizer.encode_flat)
    assert encoded.tokens.tolist() == [token for ids in tokenizer.encode_document(TEXTS[:3]) for token in ids]
    with pytest.raises(
        InputError, match="vocab_size=200 has no room for 256 bytes and 5 special tokens; set it to 522"
    ):
        train_tokenizer(TokenizerConfig(None, 200, 2, None, "auto", "bpe"), lambda: iter(TEXTS), True, "hugging_face")


def test_a_library_file_of_bert_is_berts(tmp_path: Path) -> None:
    from bertkit.data.corpus.tokenizer import train_wordpiece

    own = train_wordpiece(lambda: iter(TEXTS), 150, True, 2)
    (tmp_path / "tokenizer.json").write_text(own.files(9)["tokenizer.json"])
    assert load_tokenizer(tmp_path).words_by.is_of_bert
    assert LibraryTokenizer.from_file(str(tmp_path / "tokenizer.json")).encode("kan").ids == own("kan")["input_ids"]
