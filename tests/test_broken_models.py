"""Broken models, through the commands that a user runs: one line that names what is wrong, exit code 2, nothing left."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Capsys, refused, small_model
from safetensors.torch import load_file, save_file
from torch import Tensor

from bertkit import export_model, load_model, load_tokenizer
from bertkit.cli import run
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.interop.google import checkpoint as tensorflow
from bertkit.interop.hugging_face import directory as huggingface

QUERY = "bert.encoder.layer.1.attention.self.query.weight"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Path:
    return export_model(small_model(tokenizer.vocab_size), tokenizer, tmp_path_factory.mktemp("whole") / "model")


def weights(change: Callable[[dict[str, Tensor]], object]) -> Callable[[Path], None]:
    def apply(directory: Path) -> None:
        tensors = load_file(directory / "model.safetensors")
        change(tensors)
        save_file(tensors, directory / "model.safetensors", {"format": "pt"})

    return apply


def as_bytes(change: Callable[[bytes], bytes], name: str = "model.safetensors") -> Callable[[Path], None]:
    return lambda directory: (directory / name).write_bytes(change((directory / name).read_bytes())) and None


def not_finite(tensors: dict[str, Tensor]) -> None:
    tensors[QUERY][3, 5] = float("nan")


def tensorflow_with_bad_checksum(directory: Path) -> None:
    model = load_model(directory).model
    tensorflow.write_release(directory, model.config, huggingface.tensors_of(model))
    (directory / "model.safetensors").unlink()
    (directory / "config.json").unlink()
    as_bytes(lambda data: data[:-1] + bytes([data[-1] ^ 1]), "bert_model.ckpt.data-00000-of-00001")(directory)


# one of each kind; interop/hugging_face/test_directory.py has many more
BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (weights(lambda t: t.pop(QUERY)), f"1 weights do not fit config.json: {QUERY}: missing"),
    "not finite": (weights(not_finite), f"{QUERY}: 1 of 676 values are not finite"),
    "truncated": (as_bytes(lambda data: data[:-100]), "model.safetensors: damaged"),
    "a bad checksum": (tensorflow_with_bad_checksum, "damaged (the checksum of"),
    "another tokenizer": (
        as_bytes(lambda data: data + b"one-more\n", "vocab.txt"),
        "vocab.txt and tokenizer.json have different ids for",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_model_is_refused_in_one_line(
    name: str, whole: Path, prepared_dir: Path, tmp_path: Path, capsys: Capsys
) -> None:
    change, message = BROKEN[name]
    directory = tmp_path / "model"
    shutil.copytree(whole, directory)
    change(directory)
    commands = [
        ["verify", f"model_dir={directory}", f"output={tmp_path / 'parity.json'}"],
        ["export", f"checkpoint={directory}", f"output_dir={tmp_path / 'out'}"],
    ]
    if name != "another tokenizer":  # these take the dataset's
        commands += [
            ["evaluate", f"model_dir={directory}", f"data_dir={prepared_dir}"],
            ["pretrain", f"init_from={directory}", f"data_dir={prepared_dir}", f"output_dir={tmp_path / 'run'}"],
        ]
    before = sorted(path.name for path in tmp_path.iterdir())
    for command in commands:
        capsys.readouterr()
        refused(run(command), message, capsys, alone=True)
        assert sorted(path.name for path in tmp_path.iterdir()) == before  # nothing was made


def test_a_vocabulary_in_another_order_is_refused(
    whole: Path, prepared_dir: Path, tmp_path: Path, capsys: Capsys
) -> None:
    """The sizes agree, the numbers mean other tokens."""
    vocab = (prepared_dir / "tokenizer" / "vocab.txt").read_text().splitlines()
    export_model(small_model(len(vocab)), load_tokenizer(prepared_dir), tmp_path / "same")
    (tmp_path / "vocab.txt").write_text("\n".join([*vocab[:5], *reversed(vocab[5:])]) + "\n")
    export_model(small_model(len(vocab)), load_tokenizer(tmp_path / "vocab.txt"), tmp_path / "other")
    short = ["segments.max_seq_length=40", f"data_dir={prepared_dir}"]
    for name, code in (("same", 0), ("other", 2)):
        assert run(["evaluate", f"model_dir={tmp_path / name}", *short]) == code
        assert ("tokenizer.path=" in capsys.readouterr().err) == bool(code)
    more = [f"init_from={tmp_path / 'other'}", "steps=1", f"output_dir={tmp_path / 'run'}"]
    refused(run(["pretrain", *short, *more]), "token 5 is", capsys)
    assert not (tmp_path / "run").exists()


def test_unbroken_model_is_verified(whole: Path, tmp_path: Path) -> None:
    assert run(["verify", f"model_dir={whole}", f"output={tmp_path / 'parity.json'}"]) == 0
