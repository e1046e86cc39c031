"""Google's TensorFlow checkpoints, without TensorFlow: the format against bytes that TensorFlow itself wrote."""

import base64
import contextlib
import json
import os
import re
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import HIDDEN, LAYERS, output_of, small_config, small_model
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bertkit import load_model, load_tokenizer
from bertkit.base.errors import BertkitError, InputError
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.interop.google import bundle
from bertkit.interop.google import checkpoint as tensorflow
from bertkit.interop.google.checkpoint import TENSORFLOW
from bertkit.interop.google.files import find_checkpoint
from bertkit.interop.google.table import build_table, masked_crc32c, read_table
from bertkit.interop.hugging_face import directory as huggingface
from bertkit.interop.hugging_face.architecture import StoredTensors
from bertkit.interop.load import load_directory
from bertkit.interop.model_dir import hashes_of, resolve_model_dir
from bertkit.model.heads import BertWithHeads

# Written by TensorFlow 2.21: tf.compat.v1.train.Saver(variables).save(session, "model.ckpt", write_meta_graph=False),
# the variables made by get_variable(name, initializer=value) with the values of ONE_FILE below; and with
# Saver(sharded=True) and the variables of TWO_FILES, in this order, on /cpu:0 and /cpu:1 by turns.
ONE_FILE_BYTES = {
    ".index": (
        "AAAGCAEaAggBABYPYmVydC9wb29sZXIvZGVuc2UvYmlhcwgBEgQSAggDKAw1tphBCBIGFWtlcm5lbAgBEggSAggCEgIIAyAMKBg1eeKGxBgHFS9h"
        "ZGFtX20IARIIEgIIAhICCAMgJCgYNTTz1+4ACw1nbG9iYWxfc3RlcAgJEgAgPCgINbvXnxEABBFoYWxmCBMSBBICCAIgRCgENbDSIukAAAAAAQAA"
        "AACt8S9WAAAAAAEAAAAAwPKhsAABA2kAqQEAAAAAAQAAAACV01rjrgEIuwEPAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAFf7gIsk"
        "dUfb"
    ),
    ".data-00000-of-00001": (
        "AACAPwAAAMAAAEBAAAAAAAAAAD8AAIA/AADAPwAAAEAAACBAAAAQQQAAEEEAABBBAAAQQQAAEEEAABBBBwAAAAAAAAAAPgDA"
    ),
}
TWO_FILES_BYTES = {
    ".index": (
        "AAAGCAIaAggBABYRYmVydC9wb29sZXIvZGVuc2UvYmlhcwgBEgQSAggDGAEoDDW2mEEIEgYTa2VybmVsCAESCBICCAISAggDKBg1eeKGxBgHFS9h"
        "ZGFtX20IARIIEgIIAhICCAMgGCgYNTTz1+4BBBFyYWluCA4SBBICCAIgMCgENVGMXWYABhdkb3VibGUIAhIIEgIIARICCAEYASAMKAg1iG0tqQAL"
        "DWdsb2JhbF9zdGVwCAkSACA0KAg1u9efEQAEE2hhbGYIExIEEgIIAhgBIBQoBDWw0iLpAAAAAAEAAAAAyMmUUgAAAAABAAAAAMDyobAAAQNpAOMB"
        "AAAAAAEAAAAAW+yEYegBCPUBDwAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAABX+4CLJHVH2w=="
    ),
    ".data-00000-of-00002": "AAAAAAAAAD8AAIA/AADAPwAAAEAAACBAAAAQQQAAEEEAABBBAAAQQQAAEEEAABBBwD9AwAcAAAAAAAAA",
    ".data-00001-of-00002": "AACAPwAAAMAAAEBAmpmZmZmZuT8APgDA",
}
ONE_FILE = {
    "bert/pooler/dense/kernel": torch.tensor([[0, 0.5, 1], [1.5, 2, 2.5]]),
    "bert/pooler/dense/bias": torch.tensor([1.0, -2, 3]),
    "bert/pooler/dense/kernel/adam_m": torch.full((2, 3), 9.0),
    "half": torch.tensor([1.5, -2], dtype=torch.float16),
    "global_step": torch.tensor(7),
}
TWO_FILES = {
    **ONE_FILE,
    "double": torch.tensor([[0.1]], dtype=torch.float64),  # at byte 12 of its file
    "brain": torch.tensor([1.5, -3], dtype=torch.bfloat16),
}
BLOCKS = ((0, 169), (174, 8), (187, 15))  # offset and size of the index's blocks in ONE_FILE_BYTES
B, T = 3, 11


def write(prefix: Path, files: dict[str, str]) -> Path:
    for ending, content in files.items():
        Path(f"{prefix}{ending}").write_bytes(base64.b64decode(content))
    return prefix


def bytes_of(prefix: Path, endings: Any = ONE_FILE_BYTES) -> dict[str, bytes]:
    return {ending: Path(f"{prefix}{ending}").read_bytes() for ending in endings}


def assert_same(results: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert sorted(results) == sorted(expected)
    for name, tensor in expected.items():
        assert results[name].dtype == tensor.dtype
        assert torch.equal(results[name], tensor)


def google_dir(directory: Path, model: BertWithHeads | None = None, **config: Any) -> Path:
    """A model in Google's layout, with optimizer slots, as run_pretraining.py leaves it."""
    directory.mkdir(exist_ok=True)
    model = small_model() if model is None else model
    tensorflow.write_release(directory, model.config, huggingface.tensors_of(model))
    variables = bundle.read_checkpoint(directory / "bert_model.ckpt")
    slots = {
        f"{name}/{slot}": torch.full_like(v, 5.0) for name, v in variables.items() for slot in ("adam_m", "adam_v")
    }
    bundle.write_checkpoint(
        directory / "bert_model.ckpt", {n: v.clone() for n, v in variables.items()} | slots | {"global_step": torch.tensor(7)}
    )  # fmt: skip
    content = json.loads((directory / "bert_config.json").read_text())
    (directory / "bert_config.json").write_text(json.dumps({**content, **config}))
    return directory


def rewritten(directory: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Path:
    prefix = directory / "bert_model.ckpt"
    variables = {name: tensor.clone() for name, tensor in bundle.read_checkpoint(prefix).items()}
    bundle.write_checkpoint(prefix, change(variables))
    return directory


# --- the format


@pytest.mark.parametrize(("files", "expected"), [(ONE_FILE_BYTES, ONE_FILE), (TWO_FILES_BYTES, TWO_FILES)])
def test_reads_what_tensorflow_wrote(tmp_path: Path, files: dict[str, str], expected: dict[str, Tensor]) -> None:
    actual = bundle.read_checkpoint(write(tmp_path / "model.ckpt", files))
    assert_same(actual, expected)
    assert all(tensor.data_ptr() % tensor.element_size() == 0 for tensor in actual.values())


def test_writes_what_tensorflow_wrote(tmp_path: Path) -> None:
    bundle.write_checkpoint(tmp_path / "model.ckpt", ONE_FILE)
    expected = {ending: base64.b64decode(content) for ending, content in ONE_FILE_BYTES.items()}
    assert bytes_of(tmp_path / "model.ckpt") == expected
    reordered = dict(reversed(ONE_FILE.items()))
    bundle.write_checkpoint(tmp_path / "model.ckpt", {**reordered, "half": ONE_FILE["half"].flip(0).flip(0)})
    assert bytes_of(tmp_path / "model.ckpt") == expected


@pytest.mark.parametrize("block_size", [1, 13, 211, 1009])
def test_a_table_of_several_blocks(block_size: int) -> None:
    items = [(f"name_{index:04d}".encode(), bytes([index % 251]) * (index % 7)) for index in range(1009)]
    table = build_table(*(items[first : first + block_size] for first in range(0, len(items), block_size)))
    assert list(read_table(table)) == items


def test_weights_of_another_precision(tmp_path: Path) -> None:
    def convert(variables: dict[str, Tensor]) -> dict[str, Tensor]:
        return {n: v.to(torch.bfloat16) if v.is_floating_point() else v for n, v in variables.items()}

    model, _ = load_directory(rewritten(google_dir(tmp_path / "model"), convert))
    for name, parameter in small_model().named_parameters():
        assert torch.equal(model.get_parameter(name), parameter.bfloat16().float())


def test_a_dtype_that_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no dtype for odd \(torch\.complex64\)"):
        bundle.write_checkpoint(tmp_path / "model.ckpt", {"odd": torch.zeros(2, dtype=torch.complex64)})
    assert list(tmp_path.iterdir()) == []


# --- damage


def flip(ending: str, at: int) -> Callable[[Path], None]:
    def damage(prefix: Path) -> None:
        path = Path(f"{prefix}{ending}")
        data = bytearray(path.read_bytes())
        data[at] ^= 1
        path.write_bytes(data)

    return damage


def cut(ending: str, size: int) -> Callable[[Path], None]:
    return lambda prefix: os.truncate(f"{prefix}{ending}", size)


def index(*entries: tuple[str, bytes], header: bytes = b"\x08\x01") -> Callable[[Path], None]:
    """Write an index with correct checksums."""

    def damage(prefix: Path) -> None:
        items = [(b"", header), *((name.encode(), message) for name, message in entries)]
        Path(f"{prefix}.index").write_bytes(build_table(items))

    return damage


def entry(dtype: int = 1, shape: tuple[int, ...] = (3,), shard: int = 0, offset: int = 0, size: int = 12) -> bytes:
    dims = b"".join(bundle.field(2, bundle.field(1, axis)) for axis in shape)
    numbers = b"".join(bundle.field(number, value) for number, value in ((3, shard), (4, offset), (5, size)))
    return bundle.field(1, dtype) + bundle.field(2, dims) + numbers + b"\x35" + bytes.fromhex("b6984108")


DATA = ".data-00000-of-00001"
DAMAGES = [
    (flip(DATA, 5), r"data-00000-of-00001: damaged \(the checksum of bert/pooler/dense/bias is wrong\)"),
    (flip(DATA, 71), "the checksum of half is wrong"),
    (cut(DATA, 71), r"truncated \(its tensors have 72 bytes, the file 71\)"),
    (cut(DATA, 0), "truncated"),
    (lambda prefix: Path(f"{prefix}{DATA}").unlink(), r"index: model\.ckpt\.data-00000-of-00001 missing"),
    (flip(".index", 9), r"index: damaged.*the checksum of its block at byte 0 is wrong"),
    (flip(".index", 190), "the checksum of its block at byte 187 is wrong"),
    (flip(".index", -1), "it does not end like a TensorFlow index"),
    (cut(".index", (64 << 20) + 1), "67108865 bytes are too many for the index of a checkpoint"),
    (lambda prefix: Path(f"{prefix}.index").unlink(), r"index: no such file; expected the index of a"),
    (cut(".index", 200), "it does not end like a TensorFlow index"),
    (index(("v", entry(dtype=7))), "v has TensorFlow's dtype number 7; bertkit reads float32, "),
    (index(("v", entry(dtype=2))), r"v has 12 bytes, but \(3,\) of torch\.float64 has 24"),

    (index(("v", entry(shape=(1 << 62, 1 << 62)))), "v has 12 bytes, but"),
    (index(("v", entry(shape=(0, 1 << 62), size=0))), "unknown or empty shape"),
    (index(("v", entry(shape=(1 << 40,), size=1 << 42))), "truncated .its tensors have 4398046511104 bytes, the file 72"),
    (index(("v", entry(offset=1 << 63))), "the checksum of v is wrong"),
    (index(*((f"v{n}", entry()) for n in range(7))), "truncated .its tensors have 84 bytes, the file 72"),
    (index(("v", entry(shard=1))), "v is in data file 1 of 1"),
    (index(("v", entry(shard=1)), header=b"\x08\x03"), "data-00001-of-00003 missing"),
    (index(("v", entry() + b"\x3a\x00")), "v is saved in 1 slices"),
    (index(("v", entry()), header=b"\x08\x01\x10\x01"), "the tensors are big-endian"),
    (index(("_CHECKPOINTABLE_OBJECT_GRAPH", entry(dtype=7))), "a checkpoint of TensorFlow 2 objects"),
    (index(("v", b"\x0d")), "it ends too early"),
    (index(("v", b"\x0c")), "wire type 4"),
    (index(("v", b"\x0a\x00")), "field 1 of a message has wire type 2"),
    (index(("v", b"\x80" * 11)), "a number has no end"),
    (index(("w", entry()), ("v", entry())), "its keys are not in order"),
    (index(("v", entry()), ("v", entry())), "its keys are not in order"),
    (index(("v" * 2000, entry())), "has a broken entry"),
    (lambda prefix: Path(f"{prefix}.index").write_bytes(build_table([(b"v", entry())])), "header"),
]  # fmt: skip


def test_an_index_of_ones_own_is_read(tmp_path: Path) -> None:
    prefix = write(tmp_path / "model.ckpt", ONE_FILE_BYTES)
    index(("v", entry()))(prefix)
    assert_same(bundle.read_checkpoint(prefix), {"v": torch.tensor([1.0, -2, 3])})


@pytest.mark.parametrize(("damage", "message"), DAMAGES)
def test_damaged_checkpoint_is_refused_in_one_line(
    tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    prefix = write(tmp_path / "model.ckpt", ONE_FILE_BYTES)
    damage(prefix)
    with pytest.raises(InputError, match=message) as caught:
        bundle.read_checkpoint(prefix)
    assert str(caught.value).startswith(f"{prefix}.")
    assert "\n" not in str(caught.value)


def with_checksums(data: bytearray) -> bytes:
    """Correct the checksums of the blocks of ONE_FILE_BYTES."""
    for offset, size in BLOCKS:
        crc32c = masked_crc32c(bytes(data[offset : offset + size + 1]))
        data[offset + size + 1 : offset + size + 5] = crc32c.to_bytes(4, "little")
    return bytes(data)


@settings(max_examples=200, deadline=20_000)  # a hang, and not a busy machine
@given(
    flips=st.lists(st.tuples(st.integers(0, 254), st.integers(1, 255)), min_size=1, max_size=6),
    ending=st.sampled_from([".index", ".index with checksums"]),
)
def test_any_index_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, flips: list[tuple[int, int]], ending: str
) -> None:
    """Any index is read or refused, quickly and in little memory, even if its checksums are correct."""
    prefix = tmp_path_factory.getbasetemp() / "flipped.ckpt"
    write(prefix, ONE_FILE_BYTES)
    data = bytearray(Path(f"{prefix}.index").read_bytes())
    for at, change in flips:
        data[at] ^= change
    Path(f"{prefix}.index").write_bytes(with_checksums(data) if ending.endswith("checksums") else data)
    tracemalloc.start()
    try:
        with contextlib.suppress(BertkitError):
            tensors = bundle.read_checkpoint(prefix)
            assert sum(tensor.nbytes for tensor in tensors.values()) <= 72
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


# --- which checkpoint


def touch(directory: Path, *files: str, checkpoint: str | None = None) -> Path:
    for file in files:
        (directory / file).write_bytes(b"")
    if checkpoint is not None:
        (directory / "checkpoint").write_text(
            f'model_checkpoint_path: "{checkpoint}"\nall_model_checkpoint_paths: "x"\n'
        )
    return directory


TWO = ("a.ckpt-1.index", "a.ckpt-20.index")
FOUND = [
    (("bert_model.ckpt.index",), None, "", "bert_model.ckpt"),
    (("bert_model.ckpt.index",), "elsewhere", "", "bert_model.ckpt"),
    (TWO, "a.ckpt-20", "", "a.ckpt-20"),
    (TWO, "/gone/run/a.ckpt-1", "", "a.ckpt-1"),
    (TWO, None, "a.ckpt-1", "a.ckpt-1"),
    (TWO, "a.ckpt-20", "a.ckpt-1", "a.ckpt-1"),
    (TWO, None, "a.ckpt-1.index", "a.ckpt-1"),
    ((), None, "", None),
    (TWO, None, "a.ckpt-2", None),
]


@pytest.mark.parametrize(("files", "checkpoint", "asked", "actual"), FOUND)
def test_checkpoint_is_found_by_prefix_or_directory(
    tmp_path: Path, files: tuple[str, ...], checkpoint: str, asked: str, actual: str
) -> None:
    touch(tmp_path, *files, checkpoint=checkpoint)
    assert find_checkpoint(tmp_path / asked) == (tmp_path / actual if actual else None)


def test_several_checkpoints(tmp_path: Path) -> None:
    touch(tmp_path, *TWO)
    with pytest.raises(InputError, match=r"a\.ckpt-1, a\.ckpt-20, .*/a.ckpt-1$"):
        find_checkpoint(tmp_path)
    touch(tmp_path, checkpoint="a.ckpt-3")
    with pytest.raises(InputError, match=r"names a\.ckpt-3"):
        find_checkpoint(tmp_path)


def test_google_directory_is_a_model_dir(tmp_path: Path, tokenizer: Tokenizer) -> None:
    directory = google_dir(tmp_path / "model", small_model(tokenizer.vocab_size))
    (directory / "vocab.txt").write_text(tokenizer.files(41)["vocab.txt"], encoding="utf-8")
    prefix = directory / "bert_model.ckpt"
    assert resolve_model_dir(directory) == resolve_model_dir(prefix) == directory
    assert load_tokenizer(prefix)("kan lor.")["input_ids"] == tokenizer("kan lor.")["input_ids"]
    assert sorted(hashes_of(directory)) == [
        "bert_config.json", "bert_model.ckpt.data-00000-of-00001", "bert_model.ckpt.index", "vocab.txt"
    ]  # fmt: skip
    other = small_model(tokenizer.vocab_size, seed=1)
    variables = tensorflow.as_tensorflow(huggingface.tensors_of(other))
    bundle.write_checkpoint(directory / "other.ckpt", variables)
    assert resolve_model_dir(directory / "other.ckpt") == directory / "other.ckpt"
    loaded = load_model(str(directory / "other.ckpt")).model.state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in other.state_dict().items())
    assert load_tokenizer(directory / "other.ckpt").vocab_size == tokenizer.vocab_size
    assert sorted(hashes_of(directory / "other.ckpt"))[1] == "other.ckpt.data-00000-of-00001"
    with pytest.raises(InputError, match=r"holds the checkpoints bert_model\.ckpt, other\.ckpt"):
        resolve_model_dir(directory)
    (directory / "bert_config.json").rename(directory / "config.json")
    assert load_model(directory / "other.ckpt").config.vocab_size == tokenizer.vocab_size
    (directory / "config.json").unlink()
    with pytest.raises(InputError, match=r"other\.ckpt: no bert_config\.json "):
        load_model(directory / "other.ckpt")


# --- the model


def test_loads_like_transformers(tmp_path: Path) -> None:
    """The same weights under Google's names and under those of `transformers`, filled in by hand."""
    from transformers import BertConfig, BertForPreTraining

    directory = google_dir(tmp_path / "model")
    config = BertConfig(**json.loads((directory / "bert_config.json").read_text()))
    theirs = BertForPreTraining(config).double().eval()
    variables = bundle.read_checkpoint(directory / "bert_model.ckpt")
    heads = {
        "cls.predictions.bias": "cls/predictions/output_bias",
        "cls.seq_relationship.weight": "cls/seq_relationship/output_weights",
        "cls.seq_relationship.bias": "cls/seq_relationship/output_bias",
    }
    used = {"global_step", *(name for name in variables if name.endswith(("/adam_m", "/adam_v")))}
    assert len(used) == 1 + 2 * (5 + 16 * LAYERS + 2 + 5 + 2)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if name in heads:
                variable = heads[name]
            else:
                module, part = name.rsplit(".", 1)
                part = ("/gamma" if part == "weight" else "/beta") if "LayerNorm" in name else f"/{part}"
                part = "" if "_embeddings." in name else part.replace("/weight", "/kernel")
                variable = module.replace("encoder.layer.", "encoder.layer_").replace(".", "/") + part
            value = variables[variable]
            parameter.copy_(value.t() if variable.endswith("kernel") else value)
            used.add(variable)
    assert used == set(variables)
    ours = load_model(directory).double()
    ids = torch.randint(131, (B, T), generator=torch.Generator().manual_seed(0))
    types = torch.randint(2, (B, T), generator=torch.Generator().manual_seed(1))
    mask = (torch.arange(T) < torch.tensor([11, 5, 7])[:, None]).long()
    with torch.no_grad():
        out, reference = ours(ids, mask, types), theirs(ids, mask, types)
    tokens = mask.bool()
    torch.testing.assert_close(out.logits["masked_lm"][tokens], reference.prediction_logits[tokens], rtol=0, atol=1e-10)
    torch.testing.assert_close(out.logits["next_sentence"], reference.seq_relationship_logits, rtol=0, atol=1e-10)


def test_skipped_variables_are_reported(tmp_path: Path) -> None:
    model, report = load_directory(google_dir(tmp_path / "model"))
    num_parameters = len(list(model.parameters()))
    assert len(report.loaded) == num_parameters == 5 + 16 * LAYERS + 2 + 5 + 2
    assert report.new == []
    assert len(report.skipped) == 2 * num_parameters + 1
    assert set(report.skipped.values()) == {"a moment of the optimizer", "the count of steps"}
    others = {  # of other optimizers, and of half precision
        "bert/pooler/dense/kernel/Adam_1": "a moment of the optimizer", "beta1_power": "a count of the optimizer",
        "output_bias/adam_m": "a moment of the optimizer", "good_steps": "loss scaling",
    }  # fmt: skip
    assert tensorflow.as_hugging_face(dict.fromkeys(others, torch.tensor([3.0])), tmp_path) == StoredTensors({}, others)


UNKNOWN = [
    ("bert/encoder/layer_0/attention/self/query/scale", torch.ones(2), "no variable of BERT"),
    ("bert/embeddings/LayerNorm/gamma/adam_x", torch.ones(2), "no variable of BERT"),
    ("bert/encoder/layer_one/output/dense/bias", torch.ones(2), "no variable of BERT"),
    ("global_step_2", torch.ones(2), "no variable of BERT"),
    ("bert/pooler/dense/bias", torch.ones(2, dtype=torch.int32), r"torch\.int32, expected floating-point numbers"),
    ("bert/pooler/dense/kernel", torch.ones(2, 3, 5), r"shape \(2, 3, 5\), expected a matrix"),
]


@pytest.mark.parametrize(("name", "tensor", "message"), UNKNOWN)
def test_unknown_variables_are_refused(name: str, tensor: Tensor, message: str) -> None:
    with pytest.raises(InputError, match=f"{name}: {message}"):
        tensorflow.as_hugging_face({"bert/pooler/dense/bias": torch.ones(3), name: tensor}, Path("x.ckpt"))


def without(name: str) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    return lambda variables: {key: value for key, value in variables.items() if key != name}


MISFITS = [
    (lambda v: v, {"num_hidden_layers": LAYERS + 1}, "16 weights do not fit bert_config.json: .*layer.3.*missing"),
    (lambda v: v, {"intermediate_size": 41}, rf"shape \(37, {HIDDEN}\), expected \(41, {HIDDEN}\)"),
    (lambda v: v, {"hidden_act": "selu"}, r"bert_config.json: hidden_act='selu'"),
    (without("bert/pooler/dense/bias"), {}, "1 weights do not fit bert_config.json: bert.pooler.dense.bias: missing"),
    (
        lambda v: {**v, "bert/extra": torch.ones(3), "electra/x": torch.ones(2)},
        {},
        "bert_model.ckpt: 2 variables do not fit BERT: bert/extra: no variable of BERT; electra/x: no variable",
    ),
]


@pytest.mark.parametrize(("change", "config", "message"), MISFITS)
def test_variables_of_wrong_shape_are_listed(
    tmp_path: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]], config: dict[str, Any], message: str
) -> None:
    directory = rewritten(google_dir(tmp_path / "model", **config), change)
    with pytest.raises(InputError, match=message):
        load_model(directory)


def test_weights_of_hugging_face_come_first(tmp_path: Path, tokenizer: Tokenizer) -> None:
    from bertkit import export_model

    export_model(small_model(tokenizer.vocab_size), tokenizer, tmp_path / "model")
    touch(tmp_path / "model", "broken.ckpt.index")
    assert load_model(tmp_path / "model").config.vocab_size == tokenizer.vocab_size


# --- names


def test_heads_of_run_classifier_and_run_squad_are_read() -> None:
    """Of run_classifier.py and run_squad.py; (C, D) and (2, D) as they are in torch."""
    variables = {"output_weights": torch.ones(5, HIDDEN), "output_bias": torch.ones(5)}
    variables |= {f"cls/squad/{name}": tensor[:2] for name, tensor in variables.items()}
    stored = tensorflow.as_hugging_face(variables, Path("x.ckpt"))
    weights, skipped = stored.tensors, stored.skipped
    shapes = {"classifier.weight": (5, HIDDEN), "classifier.bias": (5,)}
    shapes |= {"qa_outputs.weight": (2, HIDDEN), "qa_outputs.bias": (2,)}
    assert {name: tuple(weight.shape) for name, weight in weights.items()} == shapes
    assert skipped == {}
    assert_same(tensorflow.as_tensorflow(weights), variables)


@pytest.mark.parametrize(
    ("heads", "with_pooler"), [(("masked_lm", "next_sentence"), True), (("masked_lm",), False), ((), True), ((), False)]
)
def test_google_checkpoint_is_written_and_read_back(tmp_path: Path, heads: tuple[str, ...], with_pooler: bool) -> None:
    model = BertWithHeads(small_config(), heads, with_pooler)
    first, second = tmp_path / "first", tmp_path / "second"
    for directory in (first, second):
        directory.mkdir()
        tensorflow.write_release(directory, model.config, huggingface.tensors_of(model))
    loaded = load_model(first).model
    assert list(loaded.heads) == list(heads)
    expected = model.state_dict()
    assert sorted(loaded.state_dict()) == sorted(expected)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in loaded.state_dict().items())
    files = sorted(path.name for path in first.iterdir())
    assert files == ["bert_config.json", "bert_model.ckpt.data-00000-of-00001", "bert_model.ckpt.index"]
    assert all((first / name).read_bytes() == (second / name).read_bytes() for name in files)


def test_the_table_is_one_to_one() -> None:
    assert len(set(TENSORFLOW.values())) == len(TENSORFLOW) == 5 + 16 + 2 + 5 + 2 + 4
    numbered = {name.replace("{}", "17"): name.replace("{}", "17") for name in TENSORFLOW}
    variables = tensorflow.as_tensorflow({name: torch.ones(2, 3) for name in numbered})
    weights = tensorflow.as_hugging_face(variables, Path("x.ckpt")).tensors
    assert {name: tuple(weight.shape) for name, weight in weights.items()} == dict.fromkeys(numbered, (2, 3))


def test_weights_that_google_has_no_variable_for() -> None:
    weights = {f"encoder.layer.{number}.rotary": torch.ones(2) for number in range(7)}
    wrong = "has no variable for bert.encoder.layer.0.rotary, bert.encoder.layer.1.rotary, bert.encoder.layer.2.rotary and 4 more; "
    with pytest.raises(InputError, match=f"{re.escape(wrong)}leave google=true out"):
        tensorflow.as_tensorflow({**weights, "pooler.dense.bias": torch.ones(2)})


def test_the_configuration_has_the_keys_of_google() -> None:
    keys = (
        "attention_probs_dropout_prob hidden_act hidden_dropout_prob hidden_size initializer_range intermediate_size "
    )
    keys += "max_position_embeddings num_attention_heads num_hidden_layers type_vocab_size vocab_size"
    values = (0.0, "gelu", 0.1, 26, 0.05, 37, 41, 2, 3, 2, 131)
    content = json.dumps(dict(zip(keys.split(), values, strict=True)), indent=2)
    assert tensorflow.config_json(replace(small_config(), hidden_dropout_prob=0.1)) == content + "\n"


# --- TensorFlow itself

# saves as google-research/bert does; then reads what bertkit wrote: argv are the two prefixes, and how many files
WITH_TENSORFLOW = """
import json, sys, zlib
import tensorflow as tf
ours, theirs, sharded = sys.argv[1], sys.argv[2], sys.argv[3] == "True"
v1 = tf.compat.v1
reader = tf.train.load_checkpoint(ours)
values = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
with tf.Graph().as_default(), v1.Session(config=v1.ConfigProto(device_count={"CPU": 2})) as session:
    variables = []
    for index, (name, value) in enumerate(sorted(values.items())):
        with tf.device(f"/cpu:{index % 2 if sharded else 0}"):
            variables.append(v1.get_variable(name, initializer=value, use_resource=False))
    session.run(v1.global_variables_initializer())
    v1.train.Saver(variables, sharded=sharded).save(session, theirs, write_meta_graph=False)
facts = {n: [str(v.dtype), list(v.shape), zlib.crc32(v.tobytes())] for n, v in values.items()}
print("FACTS", json.dumps(facts))
"""


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True])
def test_checkpoints_equal_those_of_tensorflow(tmp_path: Path, sharded: bool) -> None:
    """TensorFlow reads what bertkit writes, value by value, and bertkit what TensorFlow writes; the bytes are the same."""
    import zlib

    python = os.environ.get("BERTKIT_TENSORFLOW_PYTHON")
    if not python:
        pytest.skip("BERTKIT_TENSORFLOW_PYTHON names no interpreter that has tensorflow")
    directory = google_dir(tmp_path / "model")
    ours, theirs = directory / "bert_model.ckpt", tmp_path / "theirs" / "model.ckpt"
    theirs.parent.mkdir()
    command = [python, "-c", WITH_TENSORFLOW, ours, theirs, sharded]
    output = output_of(command, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    facts = json.loads(next(line for line in output.splitlines() if line.startswith("FACTS "))[6:])
    written = bundle.read_checkpoint(ours)
    assert len(written) == 3 * (5 + 16 * LAYERS + 2 + 5 + 2) + 1
    assert facts == {
        name: [str(v.dtype).removeprefix("torch."), list(v.shape), zlib.crc32(v.numpy().tobytes())]
        for name, v in written.items()
    }
    assert_same(bundle.read_checkpoint(theirs), written)
    assert len(bundle.checkpoint_files(theirs)) == (3 if sharded else 2)
    if not sharded:
        assert bytes_of(theirs) == bytes_of(ours)
