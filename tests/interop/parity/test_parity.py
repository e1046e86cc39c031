"""The certificate of parity: within tolerance, and able to say no."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import LAYERS, Capsys, minilm_dir, refused, small_model
from safetensors.torch import load_file, save_file

from bertkit import check_certificate, export_model, load_model
from bertkit.base.errors import InputError, ParityError
from bertkit.cli import run
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.interop.parity import certificate, comparison
from bertkit.interop.parity import comparison as parity


@pytest.fixture
def exported(tmp_path: Path, tokenizer: Tokenizer) -> Path:
    return export_model(small_model(tokenizer.vocab_size), tokenizer, tmp_path / "model")


@pytest.mark.parametrize(("heads", "architecture", "values", "gradients"), [
    # hidden states, logits of each head, pooled output, loss
    (None, "BertForPreTraining", LAYERS + 1 + 2 + 1, 5 + 16 * LAYERS + 2 + 5 + 2),
    (["masked_lm"], "BertForMaskedLM", LAYERS + 1 + 1 + 1, 5 + 16 * LAYERS + 5),
    ([], "BertModel", LAYERS + 1 + 1, 5 + 16 * LAYERS + 2),  # nothing to lose
])  # fmt: skip
def test_a_random_model_is_within_tolerance(
    exported: Path, tokenizer: Tokenizer, heads: list[str] | None, architecture: str, values: int, gradients: int
) -> None:
    directory = exported
    if heads is not None:
        directory = export_model(load_model(exported, heads), tokenizer, exported.with_name("other"))
    result = parity.certify(directory)
    assert result["architecture"] == architecture
    assert result["within_tolerance"] is True
    weights, rows = (
        [row for row in result["comparisons"] if (row["case"] == "as loaded") is is_loaded]
        for is_loaded in (True, False)
    )
    assert [(row["what"], row["max_abs"]) for row in weights] == [("weights", 0.0)]
    assert {row["case"] for row in rows} == {"text, padded", "random ids, padded", "random ids, all positions"}
    assert {row["dtype"] for row in rows} == {"float32", "float64"}
    assert sum(row["what"].startswith("gradient.") for row in rows) == 6 * gradients
    assert len(rows) == 6 * (values + gradients)
    assert max(row["max_abs"] for row in rows if row["dtype"] == "float64") <= 1e-10
    assert parity.certify(directory) == result  # a function of the model and the seed
    assert certificate.summary_of(result).endswith("within tolerance")
    assert comparison.tokenizer_fault(directory) is None


def test_further_roundings_are_computed_only_where_they_matter(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference computes each of the 3 batches in float64 and float32; with roundings for all, twice more in float32."""
    passes, compute = list[object](), comparison.their_results
    monkeypatch.setattr(comparison, "their_results", lambda *given: passes.append(given) or compute(*given))
    counts, results = [], []
    for factor in (64, 0):
        monkeypatch.setattr(comparison, "SETTLED_FACTOR", factor)
        results.append(parity.certify(exported))
        counts.append(len(passes))
        passes.clear()
    assert counts == [6, 12]
    verdicts = [
        [(row["what"], row["within_tolerance"], row.get("error")) for row in one["comparisons"]] for one in results
    ]
    assert verdicts[0] == verdicts[1]
    errors = [[row.get("reference_error", 0) for row in one["comparisons"]] for one in results]
    assert all(early <= late for early, late in zip(*errors, strict=True))


def test_one_changed_weight_fails_values_and_gradients(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a reference with one slightly different weight, both the values and the gradients fail."""
    load = parity.load_reference

    def nudged(*arguments: Any) -> object:
        model = load(*arguments)
        with torch.no_grad():
            model.bert.encoder.layer[1].attention.self.value.bias[3] += 1e-3
        return model

    monkeypatch.setattr(parity, "load_reference", nudged)
    result = parity.certify(exported)
    assert result["within_tolerance"] is False
    bad = {row["what"] for row in result["comparisons"] if not row["within_tolerance"]}
    assert {"hidden_states.2", "logits.masked_lm", "loss"} <= bad
    assert any(what.startswith("gradient.") for what in bad)
    assert "hidden_states.1" not in bad
    assert "BAD" in certificate.summary_of(result)
    assert certificate.summary_of(result).endswith("NOT within tolerance")


def test_a_directory_that_transformers_does_not_load_cleanly(exported: Path) -> None:
    """An export refuses it; `verify` compares a copy."""
    tensors = load_file(exported / "model.safetensors")
    save_file({f"module.{name}": t for name, t in tensors.items()}, exported / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match=r"as BertForPreTraining cleanly: .*missing"):
        parity.load_reference(exported, parity.load_directory(exported)[0])
    result = parity.certify(exported)
    assert result["within_tolerance"] is True
    assert "as BertForPreTraining cleanly" in result["rewritten_because"]
    assert "compared with a copy that bertkit wrote" in certificate.summary_of(result)


def test_a_tokenizer_of_another_size_is_refused(exported: Path, capsys: Capsys) -> None:
    vocab = (exported / "vocab.txt").read_text()
    (exported / "vocab.txt").write_text(vocab + "more\n")
    refused(run(["verify", f"model_dir={exported}"]), 'different ids for "more"', capsys)
    (exported / "tokenizer.json").unlink()
    size = len(vocab.splitlines())
    refused(run(["verify", f"model_dir={exported}"]), f"has {size + 1} tokens, the embeddings {size} ", capsys)


def test_a_weight_flipped_in_memory_after_loading_fails(exported: Path, tmp_path: Path) -> None:
    output = tmp_path / "parity.json"
    assert run(["verify", f"model_dir={exported}", f"output={output}"]) == 0
    check_certificate(load_model(exported), output)
    check_certificate(load_model(exported, ["masked_lm"]), output)  # some of the certified heads
    for name, parameter in load_model(exported).model.named_parameters():
        model = load_model(exported)
        changed = dict(model.model.named_parameters())[name]
        with torch.no_grad():
            changed.view(torch.int32).flatten()[-1] ^= 1  # one bit
        assert not torch.equal(changed, parameter)
        with pytest.raises(ParityError, match="1 tensors differ"):
            check_certificate(model, output)
    with pytest.raises(ParityError, match=r"2 tensors .*classifier\.bias"):
        check_certificate(small_model(load_model(exported).config.vocab_size, heads=("sequence",)), output)
    content = json.loads(output.read_text())
    output.write_text(json.dumps({**content, "within_tolerance": False}))
    with pytest.raises(ParityError, match="not within tolerance"):
        check_certificate(load_model(exported), output)
    output.write_text("{}")
    with pytest.raises(InputError, match="not a certificate"):
        check_certificate(load_model(exported), output)


def test_verify_sees_a_flipped_weight(exported: Path, tmp_path: Path, capsys: Capsys) -> None:
    output = tmp_path / "parity.json"
    command = ["verify", f"model_dir={exported}", f"output={output}"]
    assert run(command) == 0
    certified = output.read_bytes()
    assert json.loads(certified)["within_tolerance"] is True
    assert run(command) == 0
    path = exported / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1  # one bit of the last weight: both implementations still agree on it
    path.write_bytes(bytes(data))
    capsys.readouterr()
    assert run(command) == 1
    assert f"error: {path}: damaged" in capsys.readouterr().err
    save_file(load_file(path), path, {"format": "pt"})  # as other programs write it, without a checksum
    assert run(command) == 1
    out = capsys.readouterr().out
    changed = max(load_file(path))  # tensors lie in the order of their names
    assert f"changed since it was certified: {changed}\n" in out
    assert output.read_bytes() == certified
    assert run(["verify", f"model_dir={exported}", f"output={tmp_path / 'another.json'}"]) == 0


def test_a_certificate_in_the_directory_is_checked_too(exported: Path, capsys: Capsys) -> None:
    assert run(["verify", f"model_dir={exported}"]) == 0
    (exported / "parity.json").write_text(capsys.readouterr().out)
    tensors = load_file(exported / "model.safetensors")
    tensors["cls.predictions.bias"][0] += 1
    save_file(tensors, exported / "model.safetensors", {"format": "pt"})
    assert run(["verify", f"model_dir={exported}"]) == 1
    assert json.loads(capsys.readouterr().out)["changed_since_certified"] == ["cls.predictions.bias"]


@pytest.mark.parametrize("change", ["hidden_act", "vocabulary"])
def test_verify_sees_another_configuration_and_tokenizer(
    exported: Path, tmp_path: Path, change: str, capsys: Capsys
) -> None:
    command = ["verify", f"model_dir={exported}", f"output={tmp_path / 'parity.json'}"]
    assert run(command) == 0
    if change == "hidden_act":
        path = exported / "config.json"
        path.write_text(path.read_text().replace('"gelu"', '"relu"'))
    else:
        path = exported / "tokenizer_config.json"
        path.write_text(path.read_text().replace('"model_max_length": 41', '"model_max_length": 40'))
    capsys.readouterr()
    assert run(command) == 1
    assert f"changed since it was certified: {path.name}" in capsys.readouterr().out
    if change == "hidden_act":
        with pytest.raises(ParityError, match="the configuration differs"):
            check_certificate(load_model(exported), tmp_path / "parity.json")


def test_a_certificate_without_the_settings_of_a_head_still_holds(exported: Path, tmp_path: Path) -> None:
    """Earlier versions wrote none; a certified head is a linear map."""
    content = parity.certify(exported)
    content["config"].pop("head", None)
    (tmp_path / "parity.json").write_text(json.dumps(content))
    check_certificate(load_model(exported), tmp_path / "parity.json")


def test_a_layer_less_in_memory_fails(exported: Path, tmp_path: Path) -> None:
    assert run(["verify", f"model_dir={exported}", f"output={tmp_path / 'parity.json'}"]) == 0
    model = load_model(exported)
    model.model.bert.encoder.layers = model.model.bert.encoder.layers[:-1]
    with pytest.raises(ParityError, match="16 tensors differ"):
        check_certificate(model, tmp_path / "parity.json")


@pytest.mark.parametrize("heads", [("masked_lm",), ("token",), ("span",)])
def test_a_pooler_beside_a_head_that_does_not_look_at_it(
    heads: tuple[str, ...], tmp_path: Path, tokenizer: Tokenizer
) -> None:
    """Older releases of transformers wrote such files."""
    model = small_model(tokenizer.vocab_size, heads=heads)
    directory = export_model(model, tokenizer, tmp_path / "model")
    tensors = load_file(directory / "model.safetensors")
    pooler = {f"bert.pooler.{name}": tensor for name, tensor in model.bert.pooler.state_dict().items()}
    save_file({**tensors, **pooler}, directory / "model.safetensors", {"format": "pt"})
    result = parity.certify(directory)
    assert result["within_tolerance"] is True
    assert set(pooler) <= set(result["tensor_sha256"])


def test_files_that_tokenize_differently_are_refused(exported: Path, capsys: Capsys) -> None:
    lines = (exported / "vocab.txt").read_text().splitlines()
    lines[10], lines[20] = lines[20], lines[10]
    (exported / "vocab.txt").write_text("\n".join(lines) + "\n")
    refused(run(["verify", f"model_dir={exported}"]), "vocab.txt and tokenizer.json", capsys)


@pytest.mark.parametrize("content", ["[]", "null", '{"format": "bertkit parity certificate 2"}', "{"])
def test_a_broken_certificate_is_one_line(content: str, exported: Path, capsys: Capsys) -> None:
    (exported / "parity.json").write_text(content)
    assert run(["verify", f"model_dir={exported}"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.slow
def test_a_real_checkpoint_is_within_tolerance() -> None:
    result = parity.certify(minilm_dir(), num_sequences=2)
    assert result["within_tolerance"] is True
    assert result["architecture"] == "BertModel"
    assert len(result["tensor_sha256"]) == 5 + 16 * 6 + 2
