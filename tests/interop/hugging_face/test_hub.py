"""Hub ids are found in the local cache; never a network here."""

import shutil
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from conftest import small_model
from huggingface_hub import constants

import bertkit
import bertkit.base.hub_ids
from bertkit import export_model, load_model, load_tokenizer
from bertkit.base.errors import InputError
from bertkit.base.hub_ids import check_model, is_id
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.interop.hugging_face.hub import fetch
from bertkit.interop.model_dir import resolve_model_dir

REVISION = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache, without a network."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "hub"


def cached(cache: Path, name: str, tokenizer: Tokenizer) -> Path:
    """A model in the cache, in the layout of the hub's client."""
    model = cache / f"models--{name.replace('/', '--')}"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text(REVISION)
    snapshot = model / "snapshots" / REVISION
    snapshot.parent.mkdir()
    export_model(small_model(tokenizer.vocab_size, seed=3), tokenizer, snapshot)
    return snapshot


@pytest.mark.parametrize("name", ["bert-tiny", "someone/bert_tiny.v2"])
def test_cached_hub_model_is_loaded_by_name(cache: Path, tokenizer: Tokenizer, name: str) -> None:
    snapshot = cached(cache, name, tokenizer)
    assert resolve_model_dir(name) == snapshot
    expected = small_model(tokenizer.vocab_size, seed=3).bert.embeddings.token.weight
    assert torch.equal(load_model(name).model.bert.embeddings.token.weight, expected)
    assert load_tokenizer(name)("kan lor.")["input_ids"] == tokenizer("kan lor.")["input_ids"]


def test_a_local_directory_comes_first(cache: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    snapshot = cached(cache, "someone/bert", tokenizer)
    shutil.copytree(snapshot, tmp_path / "someone" / "bert")
    assert resolve_model_dir("someone/bert") == Path("someone/bert")


@pytest.mark.parametrize("name", ["bert-tiny", "someone/bert_tiny"])
def test_uncached_hub_name_is_refused_offline(cache: Path, name: str) -> None:
    message = (
        rf"^init_from={name}: no such directory, and no hub model that is cached or can be downloaded "
        r"\(OfflineModeIsEnabled\); give a local directory, or download .* set HF_HOME to that cache$"
    )
    with pytest.raises(InputError, match=message):
        resolve_model_dir(name, "init_from")
    with pytest.raises(InputError, match=f"model_dir={name}: no such directory"):
        load_tokenizer(name)


IDS = ("bert-base-uncased", "google-bert/bert-base-uncased", "a/b.c_d-e", "a/b@main", "bert-base@refs/pr/7")
NO_IDS = ("runs/mini", "Out/mini", "mini", "here/mini", "runs/first/model", "./runs", "../runs", "/runs", "~/runs")
NO_IDS += ("runs/", "", "a b", "a/b/c", "/no/where", "a/b@", "a@b/c", "a/b@c@d")


@pytest.mark.parametrize(("name", "is_one"), [*((name, True) for name in IDS), *((name, False) for name in NO_IDS)])
def test_only_hub_ids_are_looked_up(cache: Path, name: str, is_one: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other names are not looked up: any request to the network fails the test."""
    monkeypatch.setattr(bertkit.base.hub_ids, "is_offline", lambda: pytest.fail("asked for the network"))
    Path("here").mkdir()
    assert is_id(name) == is_one
    if not is_one and name:
        check_model(name, "model_dir")
        with pytest.raises(InputError, match="no such directory"):
            resolve_model_dir(name + "nowhere/")


class Snapshot:
    """A hub with these files, and a client that fetches what matches."""

    def __init__(self, folder: Path, *files: str) -> None:
        self.folder, self.files, self.asked = folder, files, []

    def __call__(self, name: str, revision: str | None, allow_patterns: list[str]) -> str:
        fetched = list(huggingface_hub.utils.filter_repo_objects(self.files, allow_patterns=allow_patterns))
        for file in fetched:
            path = self.folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("x")
            self.asked.append(file)
        return str(self.folder)


VOCABULARIES = [("vocab.json", "merges.txt"), ("spm.model",), ("sentencepiece.bpe.model",)]
TEXT = ("config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt")
OTHERS = ("README.md", "tf_model.h5", "flax_model.msgpack", "onnx/model.onnx", "rust_model.ot", "training_args.bin")
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json")
GOOGLE = ("bert_config.json", "bert_model.ckpt.data-00000-of-00001", "bert_model.ckpt.index")


@pytest.mark.parametrize(("weights", "fetched"), [
    (("model.safetensors", "pytorch_model.bin"), ("model.safetensors",)),
    (SHARDS, SHARDS),
    (("pytorch_model.bin",), ("pytorch_model.bin",)),
    (GOOGLE, GOOGLE),
])  # fmt: skip
def test_only_what_is_needed_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: tuple[str, ...], fetched: tuple[str, ...]
) -> None:
    snapshot = Snapshot(tmp_path, *TEXT, *OTHERS, *weights)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert fetch("someone/bert", "model_dir") == tmp_path
    assert sorted(set(snapshot.asked)) == sorted({*TEXT, *fetched})


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_vocabularies_in_other_formats_are_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vocabulary: tuple[str, ...]
) -> None:
    """Such as those of microsoft/deberta-base and deberta-v3-base, which have no tokenizer.json."""
    snapshot = Snapshot(tmp_path, "config.json", "pytorch_model.bin", *vocabulary)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    fetch("someone/deberta", "model_dir")
    assert {*snapshot.asked} == {"config.json", "pytorch_model.bin", *vocabulary}


def test_a_revision_is_another_model(cache: Path, tokenizer: Tokenizer) -> None:
    snapshot = cached(cache, "someone/bert", tokenizer)
    (snapshot.parents[1] / "refs" / "step-0").write_text(REVISION[::-1])
    export_model(small_model(tokenizer.vocab_size, seed=4), tokenizer, snapshot.with_name(REVISION[::-1]))
    for name in ("someone/bert@step-0", f"someone/bert@{REVISION[::-1]}"):
        assert resolve_model_dir(name) == snapshot.with_name(REVISION[::-1])
    assert resolve_model_dir("someone/bert@main") == resolve_model_dir("someone/bert") == snapshot
    with pytest.raises(
        InputError, match=r"^model_dir=someone/bert@step-9: no such directory, and no hub model that is"
    ):
        resolve_model_dir("someone/bert@step-9")


def test_prepare_takes_the_tokenizer_of_a_hub_model(cache: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    snapshot = cached(cache, "someone/bert", tokenizer)
    (snapshot / "model.safetensors").unlink()  # which is not asked for
    made = {"corpus": ["Kan lor.\n\nMir san."], "output_dir": tmp_path / "data", "tokenizer.path": "someone/bert@main"}
    bertkit.prepare(**made)
    assert bertkit.load_tokenizer(tmp_path / "data").vocab == tokenizer.vocab
    with pytest.raises(InputError, match=r"^tokenizer.path=someone/else: no such directory, and no hub model that is"):
        bertkit.prepare(**made | {"tokenizer.path": "someone/else"})


def test_prepare_takes_the_tokenizer_of_a_run_or_a_dataset(tokenizer: Tokenizer, tmp_path: Path) -> None:
    for place, inside in (("run", "model"), ("dataset", "tokenizer")):
        tokenizer.save(tmp_path / place / inside)
        bertkit.prepare(corpus=["Kan lor."], output_dir=tmp_path / inside, tokenizer={"path": tmp_path / place})
        assert bertkit.load_tokenizer(tmp_path / inside).vocab == tokenizer.vocab


def test_the_modules_of_sentence_transformers_are_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `modules.json` a model would pool by the mean, whatever its own pooling is."""
    inside = [f"0_Transformer/{name}" for name in (*TEXT, "model.safetensors", "sentence_bert_config.json")]
    root = ["modules.json", "config_sentence_transformers.json", "1_Pooling/config.json"]
    more = ["2_Dense/config.json", "2_Dense/pytorch_model.bin"]
    left = ["0_Transformer/pytorch_model.bin", "checkpoint-500/model.safetensors", "onnx/model.onnx"]
    snapshot = Snapshot(tmp_path, *inside, *root, *more, *left)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert fetch("someone/sentences", "model_dir") == tmp_path
    assert sorted(set(snapshot.asked)) == sorted([*inside, *root, *more])


def test_a_hub_model_without_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", Snapshot(tmp_path, *TEXT, *OTHERS))
    with pytest.raises(InputError, match="model_dir=someone/bert: "):
        fetch("someone/bert", "model_dir")


def test_a_cache_that_lacks_the_preferred_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's client refuses a cache without the safetensors that the hub has; the pickled weights in it will do."""

    class IncompleteError(FileNotFoundError):
        snapshot_path = "x"

    def download(name: str, revision: str | None, allow_patterns: list[str]) -> Any:
        if "model*.safetensors" in allow_patterns:
            raise IncompleteError
        return Snapshot(tmp_path, "config.json", "pytorch_model.bin")(name, revision, allow_patterns)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert fetch("someone/bert", "model_dir") == tmp_path
