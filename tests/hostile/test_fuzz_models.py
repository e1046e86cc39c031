"""Tokenizer files and settings of models, put together from parts that the libraries know, with values that no library expects.

`test_fuzz.py` changes the bytes of such files; here what is changed is still JSON, so that it gets further.
"""

import base64
import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from test_fuzz import Reader, run_all
from tokenizer_files import NAMES, saved_model, trained

from bertkit import load_embedder
from bertkit.base.text_files import JsonValue
from bertkit.data.corpus.tokenizer import load_tokenizer
from bertkit.inference.embedding import pooling_of
from bertkit.interop.load import load_directory
from bertkit.interop.model_dir import resolve_model_dir

HOSTILE: tuple[JsonValue, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 0.5, -0.5, 999_999, 2**31, 2**34, 2**63, 2**70, 1e308, float("nan"), float("inf"),
    "", "a", "\0", "\ud800", "\u202e", "[MASK]", "<s>", "gelu", "(a+)+$", "((a{50}){50}){50}", "a" * 1001, "../../x", [], {}, [[]], [0], [""],
    ["a", 1], {"a": 1}, {"type": "Sequence"}, [{"type": "Lowercase"}], [1] * 50,
)  # fmt: skip
REGEX = (
    {"String": " "},
    {"String": ""},
    {"Regex": r"\s+"},
    {"Regex": "(a|b)*c"},
    {"Regex": "("},
    {"Regex": ""},
    {"String": "a"},
)


def table(texts: bytes) -> str:
    return base64.b64encode(bytes(4) + texts).decode()


def part(kind: str, rng: random.Random) -> JsonValue:
    """Return a part of a tokenizer.json, with settings that it may have."""
    inner = [part(kind, rng) for _ in range(rng.randint(0, 3))] if rng.random() < 0.3 else []
    pattern, text, number = (
        rng.choice(REGEX),
        rng.choice(("", " ", "a", "▁", "ab")),
        rng.choice((0, 1, 2, 7, 100, 10**6)),
    )
    scheme, behavior = (
        rng.choice(("always", "first", "never")),
        rng.choice(("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")),
    )
    flags = {
        "add_prefix_space": rng.random() < 0.5,
        "trim_offsets": rng.random() < 0.5,
        "use_regex": rng.random() < 0.5,
    }
    meta = {"replacement": "▁", "prepend_scheme": scheme, "split": rng.random() < 0.5}
    kinds: dict[str, list[dict[str, JsonValue]]] = {
        "normalizer": [
            {"type": "Sequence", "normalizers": inner}, {"type": "NFC"}, {"type": "NFKD"}, {"type": "Lowercase"}, {"type": "StripAccents"},
            {"type": "Strip", "strip_left": True, "strip_right": True}, {"type": "Prepend", "prepend": text}, {"type": "Nmt"}, {"type": "ByteLevel"},
            {"type": "Replace", "pattern": pattern, "content": text}, {"type": "Precompiled", "precompiled_charsmap": table(b"x\0" * number)[:5000]},
            {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True},
        ],
        "pre_tokenizer": [
            {"type": "Sequence", "pretokenizers": inner}, {"type": "Whitespace"}, {"type": "WhitespaceSplit"}, {"type": "BertPreTokenizer"},
            {"type": "ByteLevel", **flags}, {"type": "Metaspace", **meta}, {"type": "Punctuation", "behavior": behavior}, {"type": "UnicodeScripts"},
            {"type": "Digits", "individual_digits": True}, {"type": "CharDelimiterSplit", "delimiter": text[:1] or " "},
            {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": rng.random() < 0.5}, {"type": "FixedLength", "length": number},
        ],
        "decoder": [
            {"type": "Sequence", "decoders": inner}, {"type": "ByteLevel", **flags}, {"type": "WordPiece", "prefix": text, "cleanup": True},
            {"type": "Metaspace", **meta}, {"type": "BPEDecoder", "suffix": text}, {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True},
            {"type": "Replace", "pattern": pattern, "content": text}, {"type": "Fuse"}, {"type": "ByteFallback"},
            {"type": "Strip", "content": text[:1] or " ", "start": number, "stop": number},
        ],
        "post_processor": [
            {"type": "Sequence", "processors": inner}, {"type": "ByteLevel", **flags}, {"type": "BertProcessing", "sep": ["</s>", number], "cls": ["<s>", 0]},
            {"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", number], "trim_offsets": True, "add_prefix_space": True},
            {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": number}}, {"Sequence": {"id": "A", "type_id": 0}}],
             "pair": [{"Sequence": {"id": "B", "type_id": number}}], "special_tokens": {"<s>": {"id": "<s>", "ids": [number], "tokens": ["<s>"]}}},
        ],
        "truncation": [{"direction": "Left", "max_length": number, "strategy": "LongestFirst", "stride": number}],
        "padding": [{"strategy": {"Fixed": number * 1000}, "direction": "Left", "pad_to_multiple_of": number, "pad_id": 0, "pad_type_id": 0, "pad_token": "<pad>"}],
    }  # fmt: skip
    return rng.choice([None, *kinds[kind]])


def places(value: JsonValue, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the keys and numbers that lead to every value; of a long list or vocabulary, to a few."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = [(*at, key) for key, _ in items]
    return [*found[:12], *found[-4:], *(inner for key, one in list(items)[:40] for inner in places(one, (*at, key)))]


def twisted(good: bytes, rng: random.Random) -> bytes:
    """Replace, remove, rename or repeat some values; in a tokenizer.json also put other parts in."""
    content = json.loads(good)
    if "model" in content and "version" in content and rng.random() < 0.7:
        for kind in rng.sample(
            ("normalizer", "pre_tokenizer", "decoder", "post_processor", "truncation", "padding"), rng.randint(1, 3)
        ):
            content[kind] = part(kind, rng)
        if rng.random() < 0.5:
            return json.dumps(content).encode()
    for _ in range(rng.randint(1, 3)):
        known = places(content)
        if not known:
            break
        *path, last = rng.choice(known)
        holder = content
        for key in path:
            holder = holder[key]
        match rng.randrange(5):
            case 0:
                del holder[last]
            case 1 if isinstance(holder, dict):
                holder[str(last) + rng.choice(("_", "s", " "))] = holder.pop(last)
            case 2 if isinstance(holder, list):
                holder.extend([holder[last]] * rng.choice((1, 3, 100)))
            case _:
                holder[last] = copy.deepcopy(rng.choice(HOSTILE))
    return json.dumps(content).encode()


def of_tokenizer(kind: str, name: str = "tokenizer.json") -> Reader:
    def make(folder: Path) -> Path:
        roles = {f"{role}_token": token for role, token in NAMES.items()}
        transformers.PreTrainedTokenizerFast(tokenizer_object=trained(kind), **roles).save_pretrained(folder)
        if not (folder / name).is_file():
            (folder / name).write_text(json.dumps(roles))
        return folder / name

    def read(path: Path) -> None:
        tokenizer = load_tokenizer(path.parent)
        texts = ["Kan lon 12, naïve!", "", "a b" * 40, "\U0001f600 日本 <mask>"]
        ids = tokenizer(texts, texts)["input_ids"]
        tokenizer.decode(ids[0])
        tokenizer.encode_with_offsets(texts)
        tokenizer.encode_document(texts)
        tokenizer.texts_of(ids[0][:9])
        tokenizer.files(97)

    return Reader(make, read, change=twisted)


def of_model(auto: Any, name: str = "config.json", more: dict[str, JsonValue] | None = None) -> Reader:
    def make(folder: Path) -> Path:
        if auto is transformers.ModernBertForMaskedLM:
            config = transformers.ModernBertConfig(
                vocab_size=150, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, max_position_embeddings=64,
                pad_token_id=1, cls_token_id=0, sep_token_id=2, global_attn_every_n_layers=2, local_attention=8,
            )  # fmt: skip
            auto(config).save_pretrained(folder)
            transformers.PreTrainedTokenizerFast(
                tokenizer_object=trained("word_piece"), **{f"{role}_token": token for role, token in NAMES.items()}
            ).save_pretrained(folder)
        else:
            saved_model(folder, "word_piece", auto)
        for file, content in (more or {}).items():
            (folder / file).parent.mkdir(exist_ok=True)
            (folder / file).write_text(json.dumps(content))
        return folder / name

    def read(path: Path) -> None:
        folder = path.parents[name.count("/")]
        if name == "config.json":
            model = load_directory(resolve_model_dir(folder)).model
            assert model is not None
        else:
            pooling_of(folder)
            load_embedder(folder, device="cpu")(["Kan lon", ""])

    return Reader(make, read, 0.5, change=twisted)


MODULES = {
    "modules.json": [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
    ],
    "1_Pooling/config.json": {"word_embedding_dimension": 44, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True},
    "sentence_bert_config.json": {"max_seq_length": 31, "do_lower_case": False},
    "config_sentence_transformers.json": {"prompts": {"query": "q: "}, "default_prompt_name": None, "similarity_fn_name": "cosine"},
}  # fmt: skip


@pytest.fixture(scope="module")
def readers() -> dict[str, Reader]:
    torch.manual_seed(0)
    return {
        "a BPE": of_tokenizer("byte_level"), "a Unigram": of_tokenizer("unigram"), "a WordPiece": of_tokenizer("word_piece"),
        "a BPE of Gemma": of_tokenizer("gemma"), "tokenizer_config.json": of_tokenizer("byte_level", "tokenizer_config.json"),
        "special_tokens_map.json": of_tokenizer("unigram", "special_tokens_map.json"),
        "a BERT": of_model(transformers.BertForMaskedLM), "a classifier": of_model(transformers.BertForSequenceClassification),
        "a ModernBERT": of_model(transformers.ModernBertForMaskedLM),
        **{name: of_model(transformers.BertModel, name, MODULES) for name in MODULES},
    }  # fmt: skip


@pytest.mark.parametrize("total", [130, pytest.param(20_000, marks=pytest.mark.slow)])
def test_twisted_files_are_read_or_refused(total: int, readers: dict[str, Reader], tmp_path: Path) -> None:
    actual = run_all(readers, tmp_path, total)
    print(
        *(f"{name}: {count:,} changed files, {refused:,} refused" for name, (count, refused) in actual.items()),
        sep="\n",
    )
    assert sum(count for count, _ in actual.values()) > 0.96 * total
    assert all(refused > 0 for count, refused in actual.values() if count > 50)
