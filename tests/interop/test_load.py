"""Any model directory in; a directory out that `transformers` loads by itself."""

import os
import shutil
from pathlib import Path

import pytest
import torch
from conftest import small_model

from bertkit import export_model, load_model, load_tokenizer
from bertkit.base.errors import InputError
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.data.tokenizers.files import ADDED, CONFIG, SPECIAL_MAP
from bertkit.interop.hugging_face import directory as huggingface
from bertkit.interop.hugging_face.directory import text_files, write_model
from bertkit.interop.model_dir import hashes_of, resolve_model_dir
from bertkit.train import checkpoint
from bertkit.train.checkpoint import Checkpoint

HEADS = {"pretraining": ["masked_lm", "next_sentence"], "masked_lm": ["masked_lm"], "encoder": []}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Path:
    """The small model, exported with all heads, with the masked LM head, and as a bare encoder."""
    folder = tmp_path_factory.mktemp("exported")
    export_model(small_model(tokenizer.vocab_size), tokenizer, folder / "pretraining")
    for name in ("masked_lm", "encoder"):
        export_model(load_model(folder / "pretraining", HEADS[name]), tokenizer, folder / name)
    return folder


def test_exported_model_is_loaded_exactly(exported: Path, tokenizer: Tokenizer) -> None:
    model = load_model(exported / "pretraining")
    assert not model.training
    expected = small_model(tokenizer.vocab_size).state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in model.model.state_dict().items())
    assert load_tokenizer(exported / "pretraining")("kan lor.")["input_ids"] == tokenizer("kan lor.")["input_ids"]


@pytest.mark.parametrize(("directory", "heads", "held"), [
    ("pretraining", None, ["masked_lm", "next_sentence"]),
    ("pretraining", ["masked_lm"], ["masked_lm"]),
    ("pretraining", ["next_sentence"], ["next_sentence"]),
    ("pretraining", [], []),
    ("masked_lm", None, ["masked_lm"]),
    ("encoder", None, []),
])  # fmt: skip
def test_load_model_takes_chosen_heads(
    exported: Path, directory: str, heads: list[str] | None, held: list[str]
) -> None:
    assert list(load_model(exported / directory, heads).model.heads) == held


@pytest.mark.parametrize(
    ("directory", "heads", "missing"),
    [("encoder", ["masked_lm"], "masked_lm"), ("masked_lm", ["masked_lm", "next_sentence"], "next_sentence")],
)
def test_a_head_that_is_not_there_is_refused(exported: Path, directory: str, heads: list[str], missing: str) -> None:
    with pytest.raises(InputError, match=f"no weights for the {missing}"):
        load_model(exported / directory, heads)


@pytest.mark.parametrize("is_alone", [False, True])
def test_an_adapter_is_not_left_out_of_a_model(is_alone: bool, exported: Path, tmp_path: Path) -> None:
    """`transformers` adds its weights to those of the folder, or of the model that it names."""
    folder = tmp_path / "model"
    shutil.copytree(exported / "encoder", folder)
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "bert-base-uncased"}')
    if is_alone:
        (folder / "config.json").unlink()
        (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    with pytest.raises(InputError, match=r"adapter_config\.json: .*merge_and_unload") as caught:
        load_model(folder)
    assert len(caught.value.args) == 1


def test_what_cannot_be_exported_is_refused(exported: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="heads masked_lm, token: "):
        export_model(small_model(tokenizer.vocab_size, heads=("masked_lm", "token")), tokenizer, tmp_path / "a")
    with pytest.raises(InputError, match=rf"\b{tokenizer.vocab_size} .*\b67"):
        export_model(small_model(67), tokenizer, tmp_path / "a")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "diary.txt").write_text("dear diary")
    with pytest.raises(InputError, match="holds something else"):
        export_model(small_model(tokenizer.vocab_size), tokenizer, tmp_path / "notes")
    assert [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("*"))] == ["notes", "notes/diary.txt"]


def run_with_checkpoints(run_dir: Path, tokenizer: Tokenizer) -> Path:
    """A run with checkpoints of steps 1 and 2, whose weights differ."""
    run_dir.mkdir()
    for step in (1, 2):
        model = small_model(tokenizer.vocab_size, seed=step)
        files = text_files(model, tokenizer)
        contents = Checkpoint(step, huggingface.tensors_of(model), {}, {}, files)
        checkpoint.save(run_dir, contents.share(0, 1), keep_last=3)
    (run_dir / "model").mkdir()
    write_model(small_model(tokenizer.vocab_size, seed=3), tokenizer, run_dir / "model")
    return run_dir


def test_run_directory_means_its_newest_checkpoint(tmp_path: Path, tokenizer: Tokenizer) -> None:
    run_dir = run_with_checkpoints(tmp_path / "run", tokenizer)
    first, second = (run_dir / "checkpoints" / f"step-0000000{step}" for step in (1, 2))
    assert resolve_model_dir(run_dir) == second
    assert resolve_model_dir(str(first)) == first
    assert resolve_model_dir(run_dir / "model") == run_dir / "model"
    expected = small_model(tokenizer.vocab_size, seed=2).bert.embeddings.token.weight
    assert torch.equal(load_model(run_dir).model.bert.embeddings.token.weight, expected)
    assert load_tokenizer(run_dir).vocab_size == tokenizer.vocab_size
    os.truncate(second / "model.safetensors", 100)
    assert resolve_model_dir(run_dir) == first
    with pytest.raises(InputError, match=r"step-00000002 .*model\.safetensors"):
        resolve_model_dir(second)
    os.truncate(first / "config.json", 1)
    assert resolve_model_dir(run_dir) == run_dir / "model"
    shutil.rmtree(run_dir / "model")
    with pytest.raises(InputError, match="a run without a valid checkpoint"):
        resolve_model_dir(run_dir)


def test_missing_model_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"model_dir=.*nowhere: no such directory"):
        load_model(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"no config\.json and no checkpoints"):
        load_model(tmp_path)
    (tmp_path / "config.json").touch()
    with pytest.raises(InputError, match=r"config\.json: a file; name its folder"):
        load_model(tmp_path / "config.json")


def test_every_file_that_a_tokenizer_is_read_from_is_hashed(exported: Path, tmp_path: Path) -> None:
    shutil.copytree(exported / "encoder", tmp_path / "model")
    (tmp_path / "model" / "added_tokens.json").write_text("{}")
    before = hashes_of(tmp_path / "model")
    for name in ("config.json", "tokenizer.json", CONFIG, SPECIAL_MAP, ADDED):
        path = tmp_path / "model" / name
        path.write_text(f"{path.read_text()}\n")
        after = hashes_of(tmp_path / "model")
        assert {key for key in after if after[key] != before.get(key)} == {name}
        before = after
