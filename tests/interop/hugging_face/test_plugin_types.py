"""A user's own model type beside `transformers`: the ten lines of the guide read, write and certify Data2Vec."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers
from conftest import Capsys, refused
from family_tokenizers import save_tokenizer

from bertkit.base import plugins
from bertkit.cli import run

GUIDE = Path(__file__).resolve().parents[3] / "recipes" / "extend" / "README.md"
SHAPE = {
    "hidden_size": 12,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 17,
    "max_position_embeddings": 40,
}


@pytest.fixture
def data2vec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A Data2Vec with random weights, in a folder where the guide's plug-in is a module."""
    (code,) = re.findall(r"```python\n(.*?class Data2Vec.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "data2vec.py").write_text(code, encoding="utf-8")
    size = save_tokenizer("roberta", tmp_path / "theirs")
    torch.manual_seed(0)
    config = transformers.Data2VecTextConfig(vocab_size=size, **SHAPE)
    transformers.Data2VecTextForMaskedLM(config).save_pretrained(tmp_path / "theirs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(plugins.MODULES, "")  # the module is this test's alone
    monkeypatch.setattr(plugins, "_modules", {*plugins._modules})
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path / "theirs"
    del plugins._options["architecture", "data2vec-text"], sys.modules["data2vec"]


def test_a_model_type_of_a_plug_in(data2vec: Path, capsys: Capsys) -> None:
    refused(run(["verify", f"model_dir={data2vec}"]), "model_type 'data2vec-text'; bertkit loads bert", capsys)
    assert run(["verify", "plugins=[data2vec]", f"model_dir={data2vec}", "output=certificate.json"]) == 0
    assert json.loads(Path("certificate.json").read_text())["architecture"] == "Data2VecTextForMaskedLM"
    assert run(["export", "plugins=[data2vec]", f"model_dir={data2vec}", "head=masked_lm", "output_dir=ours"]) == 0
    assert json.loads(Path("ours/config.json").read_text())["model_type"] == "data2vec-text"
    theirs, ours = (transformers.AutoModelForMaskedLM.from_pretrained(each) for each in (data2vec, "ours"))
    ids = torch.arange(3, 12)[None]
    torch.testing.assert_close(theirs(ids).logits, ours(ids).logits)


def test_a_type_that_is_none_of_the_family(tiny_runs: Path, capsys: Capsys) -> None:
    chosen = ["pretrain", f"data_dir={tiny_runs / 'data'}", "model=tiny", "output_dir=run", "steps=1"]
    refused(run([*chosen, "model.family=bert"]), "model.family=bert: its models need no family", capsys)
    refused(run([*chosen, "model.family=nowhere"]), "model.family='nowhere': expected", capsys)
