"""Every key of the files of a tokenizer, and what is made of it: honoured, of no effect, or refused by name.

A key that is honoured changes the ids or types, as in `transformers`; one of no effect changes neither there nor here.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from interop.test_published_tokenizers import NEXT, TEXTS, VOCAB, berts, model_of, word_piece

from bertkit.base.errors import InputError
from bertkit.interop.load import load_tokenizer

CONFIG, MAP, ADDED, FILE = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.json"
TOKEN = {"content": "[E1]", "single_word": False, "lstrip": True, "rstrip": True, "normalized": False, "special": True}
# file, key, an example of a value, what is made of it
KEYS: list[tuple[str, str, Any, str]] = [
    (CONFIG, "do_lower_case", False, "honoured"),
    (CONFIG, "strip_accents", False, "honoured"),
    (CONFIG, "tokenize_chinese_chars", False, "honoured"),
    (CONFIG, "truncation_side", "left", "honoured"),
    (CONFIG, "padding_side", "left", "honoured"),
    (CONFIG, "model_input_names", ["input_ids", "attention_mask"], "honoured"),
    (CONFIG, "split_special_tokens", True, "honoured"),
    (CONFIG, "added_tokens_decoder", {str(len(VOCAB)): TOKEN}, "honoured"),
    (CONFIG, "additional_special_tokens", ["[E1]"], "honoured"),
    (CONFIG, "extra_special_tokens", ["[E1]"], "honoured"),
    (CONFIG, "image_token", "[E1]", "honoured"),  # any key that ends with _token
    *((CONFIG, f"{role}_token", "[E1]", "honoured") for role in ("bos", "eos", "pad", "cls", "sep", "mask")),
    (CONFIG, "unk_token", "z", "honoured"),
    (CONFIG, "tokenizer_class", "DistilBertTokenizer", "honoured"),  # without token types
    (CONFIG, "tokenizer_class", "BertJapaneseTokenizer", "refused"),
    (CONFIG, "model_max_length", 7, "no effect"),  # on a call; tasks and vectors take it for their length
    (CONFIG, "do_basic_tokenize", False, "no effect"),
    (CONFIG, "never_split", ["cat"], "no effect"),
    (CONFIG, "clean_up_tokenization_spaces", True, "no effect"),  # on ids
    (CONFIG, "chat_template", "{{ messages }}", "no effect"),
    (CONFIG, "auto_map", {"AutoTokenizer": ["tokenization.Own", None]}, "no effect"),  # code, which is never run
    *((CONFIG, key, "somewhere", "no effect") for key in ("name_or_path", "special_tokens_map_file", "processor_class", "backend")),
    *((CONFIG, key, 3, "no effect") for key in ("pad_to_multiple_of", "stride", "max_length", "pad_token_type_id")),
    (MAP, "additional_special_tokens", ["[E1]"], "honoured"),
    (MAP, "extra_special_tokens", ["[E1]"], "honoured"),
    (MAP, "mask_token", {**TOKEN, "content": "[E1]"}, "honoured"),
    (ADDED, "[E1]", len(VOCAB), "honoured"),
    (ADDED, "[E1]", len(VOCAB) + 9, "refused"),
    (FILE, "added_tokens", [{**TOKEN, "id": len(VOCAB)}], "honoured"),
    (FILE, "truncation", {"direction": "Left", "max_length": 9, "strategy": "LongestFirst", "stride": 0}, "honoured"),
    (FILE, "padding", {"strategy": {"Fixed": 40}, "direction": "Left", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
                       "pad_token": "[PAD]"}, "honoured"),
    (FILE, "normalizer", {"type": "Lowercase"}, "honoured"),
    (FILE, "pre_tokenizer", {"type": "WhitespaceSplit"}, "honoured"),
    (FILE, "post_processor", {"type": "RobertaProcessing", "sep": ["</s>", 3], "cls": ["<s>", 2], "trim_offsets": True,
                              "add_prefix_space": False}, "honoured"),
    (FILE, "post_processor", None, "refused"),
    (FILE, "decoder", None, "no effect"),  # on ids
    (FILE, "model.max_input_chars_per_word", 200, "honoured"),
    (FILE, "model.continuing_subword_prefix", "@@", "honoured"),
    (FILE, "model.unk_token", "z", "honoured"),
    (FILE, "model.vocab", {token: n for n, token in enumerate(["[PAD]", "<unk>", "<s>", "</s>", "[MASK]", *"abcdefghij"])}, "honoured"),
    (FILE, "version", "1.0", "no effect"),
]  # fmt: skip
Answers = list[tuple[list[list[int]], ...]]


def answers(tokenizer: Any) -> Answers:
    """The ids and types of texts and pairs, also cut, and padded."""
    found = []
    for second in (None, TEXTS[::-1]):
        for options in ({}, {"truncation": True, "max_length": 7, "padding": True}):
            encoded = tokenizer(TEXTS, second, **options)
            ids = [list(row) for row in encoded["input_ids"]]
            found.append((ids, [list(row) for row in encoded.get("token_type_ids", [[0] * len(row) for row in ids])]))
    return found


def written(folder: Path, file: str, key: str, value: Any) -> None:
    """A BERT of a `vocab.txt`, or of a tokenizer.json that is taken as it is, with a key more."""
    if file != FILE:
        berts(folder)
        (folder / file).write_text(json.dumps({key: value}))
        return
    word_piece(folder)
    content = json.loads((folder / FILE).read_text())
    place, *inner = key.split(".")
    content[place] = {**content[place], inner[0]: value} if inner else value
    (folder / FILE).write_text(json.dumps(content))


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Answers]:
    """The answers without the key: of a BERT, and of a tokenizer.json."""
    found = {}
    for is_file, make in ((False, berts), (True, word_piece)):
        folder = tmp_path_factory.mktemp("usual")
        found[is_file] = answers(load_tokenizer(model_of(folder, make)))
    return found


@pytest.mark.parametrize(("file", "key", "value", "effect"), KEYS, ids=lambda each: str(each)[:30])
def test_a_key_is_honoured_refused_or_of_no_effect(
    file: str, key: str, value: Any, effect: str, usual: dict[bool, Answers], tmp_path: Path
) -> None:
    folder = model_of(tmp_path, lambda folder: written(folder, file, key, value))
    if effect == "refused":
        with pytest.raises(InputError) as caught:
            load_tokenizer(folder)
        assert len(caught.value.args) == 1
        return
    ours = load_tokenizer(folder)
    actual = answers(ours)
    assert actual == answers(transformers.AutoTokenizer.from_pretrained(folder))
    assert (actual != usual[file == FILE]) == (effect == "honoured")


def test_the_tokens_of_all_files_come_together(tmp_path: Path) -> None:
    berts(tmp_path)
    (tmp_path / ADDED).write_text(json.dumps(NEXT))
    (tmp_path / MAP).write_text(json.dumps({"additional_special_tokens": ["<e3>"]}))
    (tmp_path / CONFIG).write_text(json.dumps({"bos_token": "<b>", "extra_special_tokens": {"video_token": "<v>"}}))
    folder = model_of(tmp_path, lambda _: None)
    ours, theirs = load_tokenizer(folder), transformers.AutoTokenizer.from_pretrained(folder)
    assert {token: number for number, token in enumerate(ours.vocab)} == theirs.get_vocab()
    assert set(ours.vocab) > {"[E1]", "[/E1]", "<e3>", "<b>", "<v>"}
