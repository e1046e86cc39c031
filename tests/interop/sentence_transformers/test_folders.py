"""Folders of sentence-transformers beside the package itself: the same vectors, or one line of refusal; never another result.

Random folders have every module class of the installed version, in the files of all versions; and every key has one treatment.
"""

import inspect
import json
import logging
import random
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import POSITIONS, Capsys, small_model

from bertkit import export_model, load_embedder, load_tokenizer
from bertkit.base.errors import InputError
from bertkit.cli import run
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.interop.sentence_transformers.folder import (
    ENCODER_KEYS,
    LEGACY_MODES,
    MODEL_KEYS,
    POOLING_KEYS,
    read_pooling,
)
from bertkit.interop.sentence_transformers.steps import KEYS, STEPS

sentence_transformers = pytest.importorskip("sentence_transformers")
from sentence_transformers.sentence_transformer import modules as theirs  # noqa: E402

TEXTS = ["kan lon. min", "KAN Lon ΑΣ [SEP] Ünïcode", "", "ka " * 60, "mirun 中文 min."]
OLD = "sentence_transformers.models"
WIDTH = 26  # of the encoder


@pytest.fixture(scope="module")
def encoders(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lower-casing encoder, and one that tells capital letters apart."""
    from bertkit.data.corpus.tokenizer import wordpiece

    folder = tmp_path_factory.mktemp("encoders")
    words = tokenizer.vocab
    capitals = [word.upper() for word in words if word.isalpha() and word.upper() not in words]
    cased = wordpiece({word: number for number, word in enumerate([*words, *capitals])}, lowercase=False)
    for name, own in (("lower", tokenizer), ("cased", cased)):
        export_model(small_model(own.vocab_size, heads=(), with_pooler=True), own, folder / name)
    return folder


def write(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def make_folder(
    folder: Path,
    encoder: Path,
    *,
    inside: str = "",
    pooling: dict[str, Any] | None = None,
    more: Sequence[Any] = (),  # modules after the pooling
    before: Sequence[Any] = (),
    encoder_settings: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
    types: str = OLD,
) -> Path:
    """Write a folder of sentence-transformers, with modules as the package saves them."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(encoder, folder / inside)
    listed = [("Transformer", inside), *((type(m).__name__, f"{n}_x") for n, m in enumerate(before, 20))]
    listed += [
        ("Pooling", "1_Pooling"),
        *((type(m).__name__, f"{n}_{type(m).__name__}") for n, m in enumerate(more, 2)),
    ]
    for module, (_, path) in zip([None, *before, None, *more], listed, strict=True):
        if module is not None:
            (folder / path).mkdir()
            module.save(str(folder / path))
    rows = [
        {"idx": n, "name": str(n), "path": path, "type": f"{types}.{kind}"} for n, (kind, path) in enumerate(listed)
    ]
    write(folder / "modules.json", rows)
    write(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": WIDTH} if pooling is None else pooling)
    if encoder_settings is not None:
        write(folder / inside / "sentence_bert_config.json", encoder_settings)
    if settings is not None:
        write(folder / "config_sentence_transformers.json", settings)
    return folder


def compare(folder: Path, must_agree: bool = False) -> str:
    """Return "same" or "refused"; fail if the vectors differ, or if bertkit loads what the package does not."""
    fault, expected = None, None
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            embed = load_embedder(folder, device="cpu")
            actual = embed(TEXTS)
            expected = sentence_transformers.SentenceTransformer(
                str(folder), device="cpu", local_files_only=True
            ).encode(TEXTS)
    except InputError as error:
        fault = str(error)
    finally:
        logging.disable(logging.NOTSET)
    if fault is not None:
        assert not must_agree, fault
        assert len(fault.splitlines()) == 1
        assert str(folder) in fault
        return "refused"
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max() < 1e-5
    return "same"


def dense(given: int, made: int, **more: Any) -> Any:
    torch.manual_seed(given + made)
    return theirs.Dense(given, made, **more)


PROMPTS = {"prompts": {"query": "min ka: ", "passage": ""}, "default_prompt_name": "query"}
ROWS: dict[str, dict[str, Any]] = {
    "lower-cased before a cased encoder": {"encoder_settings": {"max_seq_length": 30, "do_lower_case": True}},
    "mean and last token": {"pooling": {"embedding_dimension": WIDTH, "pooling_mode": ["mean", "lasttoken"]}},
    "cls and last token": {"pooling": {"word_embedding_dimension": WIDTH, **{LEGACY_MODES[m]: True for m in ("lasttoken", "cls")}}},
    "weighted mean": {"pooling": {"word_embedding_dimension": WIDTH, "pooling_mode_weightedmean_tokens": True}},
    "mean by the square root": {"pooling": {"word_embedding_dimension": WIDTH, "pooling_mode_mean_sqrt_len_tokens": True}},
    "no keys": {},
    "all keys false": {"pooling": {"word_embedding_dimension": WIDTH, **dict.fromkeys(LEGACY_MODES.values(), False)}},
    "dot product": {"settings": {"similarity_fn_name": "dot", "prompts": {}}},
    "an encoder in a folder": {"inside": "0_Transformer", "encoder_settings": {"max_seq_length": 20}},
    "an empty default prompt": {"settings": {"prompts": {"a": ""}, "default_prompt_name": "a"}},
    "a default prompt that nobody wrote": {"settings": {"default_prompt_name": "document"}},
    "a default prompt": {"settings": PROMPTS},
    "a default prompt, not pooled": {"settings": PROMPTS, "pooling": {"embedding_dimension": WIDTH, "pooling_mode": [*LEGACY_MODES], "include_prompt": False}},
    "truncated after a normalization": {"settings": {"truncate_dim": 11}, "more": [theirs.Normalize()]},
    "LaBSE's modules": {"more": [dense(WIDTH, 31), theirs.Normalize()]},
    "every step": {"more": [
        theirs.Dropout(0.5), theirs.Normalize(), theirs.LayerNorm(WIDTH), dense(WIDTH, WIDTH, use_residual=True),
        dense(WIDTH, 9, bias=False, activation_function=torch.nn.Identity(), use_residual=True),
    ]},
    "arguments of from_pretrained": {"encoder_settings": {"max_seq_length": 40, "tokenizer_args": {"model_max_length": 12}, "model_args": {"torch_dtype": "float32"}}},
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_what_is_published_has_its_vectors(name: str, encoders: Path, tmp_path: Path, capsys: Capsys) -> None:
    """Also after an export, which keeps what the folder says."""
    encoder = encoders / ("cased" if "cased" in name else "lower")
    folder = make_folder(tmp_path / "in", encoder, **ROWS[name])
    assert compare(folder, must_agree=True) == "same"
    if name not in ("every step", "lower-cased before a cased encoder", "a default prompt, not pooled", "dot product"):
        return
    options = [f"checkpoint={folder}", "head=encoder", "sentence_transformers=true", f"output_dir={tmp_path / 'out'}"]
    assert run(["export", *options]) == 0
    assert compare(tmp_path / "out", must_agree=True) == "same"
    assert np.abs(load_embedder(tmp_path / "out")(TEXTS[:2]) - load_embedder(folder)(TEXTS[:2])).max() < 1e-6
    before, after = read_pooling(folder), read_pooling(tmp_path / "out")
    assert (before.prompts, before.default_prompt, before.similarity) == (
        after.prompts, after.default_prompt, after.similarity,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["a default prompt", "a default prompt, not pooled", "no keys"])
def test_the_ids_of_a_text_have_its_vector(name: str, encoders: Path, tmp_path: Path) -> None:
    """Clients of OpenAI send ids; the prompt was not before them, but its tokens were left out of the mean."""
    embed = load_embedder(make_folder(tmp_path / "in", encoders / "lower", **ROWS[name]))
    whole = embed.tokenizer(TEXTS)["input_ids"]
    by_text = embed.embed(TEXTS)
    for ids in (whole, [own[1:-1] for own in whole]):
        by_ids = embed.embed(ids)
        assert np.abs(by_ids.vectors - by_text.vectors).max() < 1e-6
        assert by_ids.num_cut == by_text.num_cut


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a new key of pooling": ({"pooling": {"embedding_dimension": WIDTH, "pooling_gamma": 2}}, "pooling_gamma=2: unknown key"),
    "a mode": ({"pooling": {"pooling_mode": "median"}}, "pooling_mode='median': expected some of cls, max"),
    "no mode": ({"pooling": {"pooling_mode": []}}, "pooling_mode=[]: expected some of"),
    "a prompt": ({"settings": {"default_prompt_name": "q", "prompts": {"a": "b"}}}, "default_prompt_name='q': the prompts are 'query', 'document', 'a'"),
    "another kind of model": ({"settings": {"model_type": "SparseEncoder"}}, "model_type='SparseEncoder' is not supported"),
    "a new key of the model": ({"settings": {"scale_by": 2}}, "scale_by=2: unknown key"),
    "another output": ({"encoder_settings": {"module_output_name": "sentence_embedding"}}, "module_output_name='sentence_embedding'"),
    "another task": ({"encoder_settings": {"transformer_task": "fill-mask"}}, "transformer_task='fill-mask' is not supported"),
    "padding": ({"encoder_settings": {"processor_kwargs": {"padding_side": "left"}}}, "processor_kwargs.padding_side='left' is not supported"),
    "settings of calls": ({"encoder_settings": {"processing_kwargs": {"text": {"add_special_tokens": False}}}}, "processing_kwargs="),
    "code of its own": ({"types": "my_code"}, "type 'my_code.Transformer' is code of its own, which is not run"),
    "an activation": ({"more": [dense(WIDTH, 5, activation_function=torch.nn.Hardswish())]}, "activation_function='torch.nn.modules.activation.Hardswish'"),
    "sizes": ({"more": [dense(WIDTH + 1, 5)]}, f"takes vectors of {WIDTH + 1} numbers; those before it have {WIDTH}"),
    "tokens": ({"more": [theirs.Normalize(module_input_name="token_embeddings")]}, "module_input_name='token_embeddings' is not supported"),
    "words": ({"before": [theirs.WordWeights(["a"], {"a": 2.0})]}, "Transformer, WordWeights, Pooling; bertkit supports"),
}  # fmt: skip


def test_what_bertkit_lacks_is_refused_by_its_own_name(encoders: Path, tmp_path: Path) -> None:
    for name, (parts, message) in REFUSED.items():
        folder = make_folder(tmp_path / "folder", encoders / "lower", **parts)
        with pytest.raises(InputError) as error:
            load_embedder(folder)
        assert message in str(error.value), name
        assert len(str(error.value).splitlines()) == 1, name


def parameters(kind: Any, *without: str) -> set[str]:
    return {*inspect.signature(kind.__init__).parameters} - {"self", "kwargs", "args", *without}


def test_every_key_and_module_of_the_installed_version_has_one_treatment(tmp_path: Path) -> None:
    """A key of a new version fails here until it is in a table."""
    from sentence_transformers.sentence_transformer.modules import pooling

    def known(keys: Any) -> set[str]:
        return {*keys.honoured, *keys.only, *keys.no_effect}

    own = theirs.Pooling
    assert {*own.config_keys, *own.config_key_renames, *pooling._LEGACY_POOLING_MODE_KWARGS} == known(POOLING_KEYS)
    assert tuple(LEGACY_MODES) == theirs.Pooling.POOLING_MODES
    named = parameters(theirs.Transformer, "model_name_or_path", "backend")
    assert named | {*theirs.Transformer.config_keys} == known(ENCODER_KEYS)
    for kind in STEPS:
        own = getattr(theirs, kind)
        assert {*own.config_keys} == known(KEYS[kind]), kind
    model = sentence_transformers.SentenceTransformer
    saved = {
        *inspect.getsource(model._get_model_config).split('"'),
        *inspect.getsource(model.__base__._get_model_config).split('"'),
    }
    cross = {*inspect.getsource(sentence_transformers.CrossEncoder._get_model_config).split('"')}
    keys = {word for word in saved | cross if word.isidentifier()} - {
        "sentence_transformers",
        "transformers",
        "pytorch",
    }
    assert keys | {"requirements"} == known(MODEL_KEYS)
    kinds = {name for name in theirs.__all__ if name not in ("Module", "InputModule")}
    assert {"Transformer", "Pooling", *STEPS} < kinds
    others = kinds - {"Transformer", "Pooling", *STEPS}
    assert len(others) == 10
    for kind in others:
        types = [f"{OLD}.{each}" for each in ("Transformer", kind, "Pooling")]
        write(tmp_path / "modules.json", [{"name": each, "path": "", "type": each} for each in types])
        with pytest.raises(InputError, match=f"Transformer, {kind}, Pooling; bertkit supports"):
            read_pooling(tmp_path)


def test_a_second_encoder_and_a_missing_folder(encoders: Path, tmp_path: Path) -> None:
    """`modules.json` decides which encoder it is."""
    folder = make_folder(tmp_path / "in", encoders / "lower", inside="0_Transformer")
    alone = load_embedder(folder)(TEXTS[:3])
    for path in (encoders / "cased").iterdir():
        shutil.copy(path, folder)
    assert np.array_equal(load_embedder(folder)(TEXTS[:3]), alone)
    assert load_tokenizer(folder).vocab == load_tokenizer(encoders / "lower").vocab
    (folder / "1_Pooling" / "config.json").unlink()
    with pytest.raises(InputError, match=r"1_Pooling/config\.json: no such file"):
        load_embedder(folder)


def random_folder(draw: random.Random, folder: Path, encoders: Path) -> Path:
    """Write a random folder: mostly what bertkit has, and some of each thing that it has not."""
    modes = draw.sample([*LEGACY_MODES], draw.choice([1, 1, 1, 2, 3]))
    kind = draw.choice(["one", "list", "legacy", "legacy", "none"])
    pooling: dict[str, Any] = {draw.choice(["word_embedding_dimension", "embedding_dimension"]): WIDTH}
    pooling |= {
        "one": {"pooling_mode": modes[0]}, "list": {"pooling_mode": modes}, "none": {},
        "legacy": {key: mode in modes for mode, key in LEGACY_MODES.items() if mode in modes or draw.random() < 0.6},
    }[kind]  # fmt: skip
    if draw.random() < 0.2:
        pooling["include_prompt"] = draw.random() < 0.5
    size, more = WIDTH * (1 if kind == "none" or kind == "one" else len(modes)), []
    for _ in range(draw.choice([0, 0, 1, 2, 3])):
        made = draw.choice([size, 7, 31])
        activation = draw.choice(
            [torch.nn.Tanh, torch.nn.Identity, torch.nn.ReLU, torch.nn.GELU, torch.nn.SiLU, torch.nn.Mish]
        )()
        dense_ = dense(
            size, made, bias=draw.random() < 0.7, activation_function=activation, use_residual=draw.random() < 0.3
        )
        choice = draw.choice(["Dense", "Dense", "Normalize", "LayerNorm", "Dropout"])
        more.append(
            {
                "Dense": dense_,
                "Normalize": theirs.Normalize(),
                "LayerNorm": theirs.LayerNorm(size),
                "Dropout": theirs.Dropout(),
            }[choice]
        )
        size = made if choice == "Dense" else size
    before = (
        [draw.choice([theirs.WeightedLayerPooling(WIDTH, 3), theirs.CNN(WIDTH, 5), theirs.LSTM(WIDTH, 5)])]
        if draw.random() < 0.1
        else []
    )
    prompts = {
        name: draw.choice(["", "ka: ", "MIN lon [SEP] ", None])
        for name in draw.sample(["query", "passage", "a", "document"], draw.randint(0, 3))
    }
    settings: dict[str, Any] = {"prompts": {k: v for k, v in prompts.items() if v is not None}, "__version__": {}}
    settings["default_prompt_name"] = draw.choice([None, None, *prompts, "query", "b"])
    settings["similarity_fn_name"] = draw.choice([None, "cosine", "dot", "euclidean", "manhattan"])
    if draw.random() < 0.2:
        settings |= draw.choice(
            [
                {"truncate_dim": 5},
                {"truncate_dim": 500},
                {"model_type": "SentenceTransformer"},
                {"model_type": "SparseEncoder"},
                {"new": 1},
            ]
        )
    encoder: dict[str, Any] = {
        "max_seq_length": draw.choice([9, 20, POSITIONS, None]),
        "do_lower_case": draw.random() < 0.4,
    }
    if draw.random() < 0.3:
        encoder |= draw.choice([
            {"model_args": {"attn_implementation": "eager"}}, {"processor_kwargs": {"model_max_length": 15}}, {"unpad_inputs": False},
            {"query_length": 8}, {"config_args": {"hidden_act": "relu"}}, {"unheard_of": True},
            {"modality_config": {"text": {"method": "forward", "method_output_name": "pooler_output"}}, "module_output_name": "sentence_embedding"},
            {"modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}, "module_output_name": "token_embeddings"},
        ])  # fmt: skip
    return make_folder(
        folder, encoders / draw.choice(["lower", "cased"]), inside=draw.choice(["", "", "0_Transformer", "0_BERT"]),
        pooling=pooling, more=more, before=before, encoder_settings=draw.choice([None, encoder, encoder, encoder]),
        settings=draw.choice([None, settings, settings]), types=draw.choice([OLD, OLD, "sentence_transformers.sentence_transformer.modules"]),
    )  # fmt: skip


@pytest.mark.parametrize(
    "seeds", [range(6), pytest.param(range(6, 100), marks=pytest.mark.slow)], ids=["a few", "many"]
)
def test_random_folders(seeds: range, encoders: Path, tmp_path: Path) -> None:
    outcomes = [compare(random_folder(random.Random(seed), tmp_path / "folder", encoders)) for seed in seeds]
    assert outcomes.count("same") >= len(seeds) / 3
    assert outcomes.count("refused") >= len(seeds) / 20
    print({outcome: outcomes.count(outcome) for outcome in sorted(set(outcomes))})
