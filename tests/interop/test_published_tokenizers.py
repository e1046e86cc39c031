"""Tokenizers that people publish: the ids and types of `transformers.AutoTokenizer` of the same files, before and after an export."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
from conftest import Capsys
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from bertkit.base.errors import InputError
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.interop.load import load_tokenizer
from bertkit.tasks.feature import pieces, text_feature

LETTERS = [chr(ord("a") + number) for number in range(26)]
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS), *"[]/1.中",
         "cat", "dog", "sat", "amsterdam"]  # fmt: skip
TEXTS = [
    "the cat [E1] dog [/E1] sat", "Amsterdam [e1] the[E1]cat", "ÀÉ 中国 cat", f"[MASK] the cat.{' x' * 20}", "a" * 120, "[E1 ] e1",
    "x [PAD] y</s> <s>", " \t[E1]\u00a0. ", "",
]  # fmt: skip
EXTRA = {"additional_special_tokens": ["[E1]", "[/E1]"]}
NEXT = {"[E1]": len(VOCAB), "[/E1]": len(VOCAB) + 1}


def berts(folder: Path, **settings: Any) -> Any:
    """BERT's tokenizer of `transformers`, from a `vocab.txt` in a folder."""
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in VOCAB))
    return transformers.BertTokenizer.from_pretrained(str(folder / "vocab.txt"), **settings)


def saved(folder: Path, extra: Any = None, **settings: Any) -> None:
    tokenizer = berts(folder, **settings)
    if extra is not None:
        tokenizer.add_special_tokens(extra)
    tokenizer.save_pretrained(folder)
    (folder / "vocab.txt").unlink()


def texts(folder: Path, **files: Any) -> None:
    """A `vocab.txt`, with other files."""
    berts(folder)
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))


def cut_by_the_file(folder: Path) -> None:
    tokenizer = berts(folder)
    tokenizer.backend_tokenizer.enable_truncation(99, direction="left")
    tokenizer.save_pretrained(folder)


def word_piece(
    folder: Path, named: Any = None, *, most: int = 100, has_words: bool = True, cls: str = "<s>", **normal: Any
) -> None:
    """Another WordPiece, whose files say that its class is the general one, or have these settings."""
    names = {"[CLS]": cls, "[SEP]": "</s>" if cls == "<s>" else "[SEP]", "[UNK]": "<unk>" if cls == "<s>" else "[UNK]"}
    vocab = {names.get(token, token): number for number, token in enumerate(VOCAB)}
    sep, unk = names["[SEP]"], names["[UNK]"]
    library = LibraryTokenizer(models.WordPiece(vocab, unk_token=unk, max_input_chars_per_word=most))
    library.normalizer, library.decoder = normalizers.BertNormalizer(**normal), decoders.WordPiece()
    if has_words:
        library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}", pair=f"{cls} $A {sep} $B:1 {sep}:1", special_tokens=[(cls, 2), (sep, 3)]
    )
    roles = {"cls_token": cls, "sep_token": sep, "unk_token": unk, "pad_token": "[PAD]", "mask_token": "[MASK]"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=library, **roles).save_pretrained(folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, **(named or {})}))


ROWS: dict[str, Callable[[Path], None]] = {
    "plain": saved,
    "vocab.txt alone": berts,
    "cased": lambda folder: texts(folder, tokenizer_config={"do_lower_case": False}),
    "no Chinese characters": lambda folder: saved(folder, tokenize_chinese_chars=False),
    "accents": lambda folder: saved(folder, strip_accents=False),
    "special tokens added": lambda folder: saved(folder, EXTRA),
    "a token added": lambda folder: saved(folder, {"bos_token": "[E1]", "mask_token": "<mask>"}),
    "added_tokens.json": lambda folder: texts(folder, added_tokens=NEXT),
    "added_tokens.json, special": lambda folder: texts(folder, added_tokens=NEXT, special_tokens_map=EXTRA),
    "added_tokens_decoder": lambda folder: texts(
        folder,
        tokenizer_config={
            "added_tokens_decoder": {
                str(number): {"content": name, "lstrip": True, "rstrip": True, "single_word": False, "normalized": False,
                              "special": number % 2 == 0}
                for name, number in NEXT.items()
            }
        },
    ),
    "additional_special_tokens": lambda folder: texts(folder, tokenizer_config=EXTRA),
    "cleanly decoded": lambda folder: texts(folder, tokenizer_config={"clean_up_tokenization_spaces": True}),
    "split_special_tokens": lambda folder: saved(folder, EXTRA, split_special_tokens=True),
    "a mask that takes the space": lambda folder: texts(
        folder,
        special_tokens_map={"mask_token": {"content": "[MASK]", "lstrip": True, "rstrip": True, "normalized": False,
                                           "single_word": False}},
    ),
    "truncation_side": lambda folder: saved(folder, truncation_side="left"),
    "truncation in tokenizer.json": cut_by_the_file,
    "model_input_names": lambda folder: saved(folder, model_input_names=["input_ids", "attention_mask"]),
    "other special tokens": word_piece,
    "a BERT of other special tokens": lambda folder: word_piece(folder, {"tokenizer_class": "BertTokenizer"}),
    "clean_text": lambda folder: word_piece(folder, clean_text=False),
    "handle_chinese_chars": lambda folder: word_piece(folder, cls="[CLS]", handle_chinese_chars=False),
    "longer words": lambda folder: word_piece(folder, most=200),
    "longer words in a BERT": lambda folder: word_piece(folder, {"tokenizer_class": "BertTokenizer"}, most=200),
    "no pre-tokenizer": lambda folder: word_piece(folder, has_words=False),
    "the general class": lambda folder: word_piece(folder, cls="[CLS]"),
    "a class of its own": lambda folder: word_piece(folder, {"tokenizer_class": "DistilBertTokenizer"}, cls="[CLS]"),
    "an unknown class": lambda folder: word_piece(folder, {"tokenizer_class": "NoSuchTokenizer"}),
}  # fmt: skip
CUT = {"truncation": True, "max_length": 9}


def model_of(folder: Path, make: Callable[[Path], Any]) -> Path:
    make(folder)
    (folder / "config.json").write_text('{"model_type": "bert", "vocab_size": 99}')
    return folder


def assert_alike(ours: Tokenizer, theirs: Any) -> None:
    """The same ids and types for texts and pairs, also where they are cut; and by the way of predictions."""
    for text in TEXTS:
        for own in ((text,), (text, TEXTS[0])):
            for options in ({}, CUT):
                actual, expected = ours(*own, **options), theirs(*own, **options)
                assert actual["input_ids"] == expected["input_ids"], own
                assert actual["token_type_ids"] == expected.get("token_type_ids", [0] * len(actual["input_ids"])), own
        (first,), (second,) = pieces(ours, [text]), pieces(ours, [TEXTS[0]])
        for own, later in (((text,), None), ((text, TEXTS[0]), second)):
            feature = text_feature(ours, 0, first, later, None, 399 if later else 9)
            expected = theirs(*own, **({} if later else CUT))
            assert feature.input_ids == expected["input_ids"], own
            assert feature.token_type_ids == expected.get("token_type_ids", [0] * len(feature.input_ids)), own


@pytest.mark.parametrize("name", ROWS)
def test_a_published_tokenizer_does_what_transformers_does(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    model_of(folder, ROWS[name])
    ours, theirs = load_tokenizer(folder), transformers.AutoTokenizer.from_pretrained(folder)
    assert len(theirs) == ours.vocab_size
    assert_alike(ours, theirs)
    written = tmp_path / "written"
    written.mkdir()
    for file, content in ours.files(64).items():
        (written / file).write_text(content)
    shutil.copy(folder / "config.json", written)
    assert_alike(load_tokenizer(written), theirs)
    again = transformers.AutoTokenizer.from_pretrained(written)
    assert_alike(ours, again)
    assert sorted(again.all_special_tokens) == sorted(theirs.all_special_tokens)
    assert again.clean_up_tokenization_spaces == theirs.clean_up_tokenization_spaces


@pytest.mark.parametrize("prefix", ["", "Ġ"])
def test_an_added_token_is_one_token_in_corpora_answers_and_tags(prefix: str, tmp_path: Path) -> None:
    """And a word of its own; the names of [CLS], [MASK] and so on are text in corpora alone."""
    if prefix:
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        vocab = {token: number for number, token in enumerate([*VOCAB[:5], *alphabet])}
        library = LibraryTokenizer(models.BPE(vocab, []))
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        library.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
        roles = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "mask_token": "[MASK]"}
        fast = transformers.PreTrainedTokenizerFast(tokenizer_object=library, **roles)
        fast.add_special_tokens(EXTRA)
        fast.save_pretrained(tmp_path)
        (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    else:
        model_of(tmp_path, ROWS["special tokens added"])
    tokenizer = load_tokenizer(tmp_path)
    number = tokenizer.vocab.index("[E1]")
    text = "cat [E1] [MASK] dog"
    (ids,), (found,) = tokenizer.encode_document([text]), tokenizer.encode_with_offsets([text])
    assert number in ids
    assert tokenizer.facts.mask not in ids
    assert found.ids == tokenizer(text)["input_ids"][1:-1]
    assert found.offsets[found.ids.index(number)] == (4, 8)
    assert found.offsets[found.ids.index(tokenizer.facts.mask)] == (9, 15)
    assert tokenizer.encode_words(["[E1]", "cat"])[0] == [number]
    flat, lengths = tokenizer.encode_flat(["[E1] cat", "dog [E1]"])
    assert (flat == number).sum() == 2
    assert lengths.sum() == len(flat)
    begins = tokenizer.facts.borders.begins([number, *tokenizer.encode_document(["cat"])[0]])
    assert begins[:2].all()
    assert [text[word.start : word.end] for word in tokenizer.words([text])[0]][1] == "[E1]"


def test_the_first_letter_after_a_space_that_was_not_there_is_not_trimmed(tmp_path: Path) -> None:
    """The library's own offsets begin a character late."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    library = LibraryTokenizer(models.BPE({token: number for number, token in enumerate([*VOCAB[:5], *alphabet])}, []))
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), pre_tokenizers.ByteLevel(add_prefix_space=True), pre_tokenizers.Punctuation()]
    )
    library.post_processor = processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2), trim_offsets=True)
    roles = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "mask_token": "[MASK]"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=library, **roles).save_pretrained(tmp_path)
    text = "the capital city is now Amsterdam"
    (found,) = load_tokenizer(tmp_path).encode_with_offsets([text])
    covered = {place for start, end in found.offsets for place in range(start, end)}
    assert covered == {place for place, letter in enumerate(text) if letter != " "}


KOBERT = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4, "▁오늘": 5, "▁a": 6, "b": 7}


@pytest.mark.parametrize(("make", "message"), [
    (lambda folder: texts(folder, tokenizer_config={"tokenizer_class": "BertJapaneseTokenizer", "word_tokenizer_type": "mecab"}),
     "tokenizer_class=BertJapaneseTokenizer: it has no fast form: transformers computes it in Python, for Japanese with the package fugashi"),
    (lambda folder: texts(folder, tokenizer_config={"tokenizer_class": "NoSuchTokenizer"}), "tokenizer_class=NoSuchTokenizer: its words are not BERT's"),
    (lambda folder: (folder / "vocab.txt").write_text("\n".join(KOBERT)), "its pieces are SentencePiece's, such as ▁오늘"),
    (lambda folder: texts(folder, added_tokens={"[E1]": len(VOCAB) + 5}), "added token '[E1]' has id 72, but the vocabulary makes it 67"),
    (lambda folder: texts(folder, tokenizer_config={"truncation_side": "middle"}), "truncation_side='middle': expected left or right"),
    (lambda folder: texts(folder, tokenizer_config={"added_tokens_decoder": {"9": 1}}), "its added tokens are not as transformers writes them"),
])  # fmt: skip
def test_what_the_library_cannot_compute_is_refused(make: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        load_tokenizer(model_of(tmp_path, make))
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_what_versions_of_transformers_read_differently_is_said(tmp_path: Path, capsys: Capsys) -> None:
    model_of(
        tmp_path, lambda folder: word_piece(folder, {"tokenizer_class": "BertTokenizer"}, most=200, clean_text=False)
    )
    load_tokenizer(tmp_path)
    err = capsys.readouterr().err
    assert (
        "model.max_input_chars_per_word=200: read past, as transformers 5 does, whose BertTokenizer has its own" in err
    )
    assert '"clean_text": false' in err
