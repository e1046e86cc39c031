"""What `conf/from_scratch` sets for small models: where it holds, what wins over it, and what a resumed run keeps."""

import json
from pathlib import Path

import pytest
from conftest import TINY_SHAPE, Capsys
from house import ROOT
from safetensors.torch import load_file

from bertkit.base.text_files import JsonObject
from bertkit.base.typed_settings import at
from bertkit.cli import run
from bertkit.settings.reading.compose import compose, compose_from_run, compose_values

KEYS = (
    "model.hidden_dropout_prob", "model.attention_probs_dropout_prob", "model.initializer_range", "model.scale_outputs", "model.frequency_biases",
    "segments.max_seq_length", "final_phase.max_seq_length", "final_phase.share", "masking.probability", "batch.sequences",
    "optimizer.peak_learning_rate", "optimizer.beta2", "optimizer.bias_correction",
)  # fmt: skip
BERT = (0.1, 0.1, 0.02, False, False, 128, None, 0.1, 0.15, 64, 1e-4, 0.999, False)
TINY, MINI, SMALL = (
    (0.0, 0.0, initial, True, biases, 32, 128, 0.5, 0.3, 32, rate, 0.98, True)
    for initial, biases, rate in ((0.088, False, 2e-3), (0.0625, False, 1e-3), (0.0265, True, 3e-4))
)
NEEDED = ["data_dir=x", "output_dir=y"]


def values(composed: JsonObject) -> tuple[object, ...]:
    return tuple(at(composed, key) for key in KEYS)


def changed(row: tuple[object, ...], **others: object) -> tuple[object, ...]:
    return tuple(others.get(key.replace(".", "_"), value) for key, value in zip(KEYS, row, strict=True))


def with_lengths(length: int, final: int | None) -> tuple[object, ...]:
    return changed(TINY, segments_max_seq_length=length, final_phase_max_seq_length=final, final_phase_share=0.1)


ROWS = {
    "": TINY,
    "model=tiny": TINY,
    "model=mini": MINI,
    "model=small": SMALL,
    "model=medium": BERT,
    "model=base": BERT,
    "model_dir=z": BERT,
    "model=mini model_dir=z": BERT,
    "model=mini experiment=continue_pretraining": changed(BERT, optimizer_peak_learning_rate=2e-5),
    "optimizer=lamb": changed(TINY, optimizer_peak_learning_rate=6e-3, optimizer_beta2=0.999),
    "masking=ngram": changed(TINY, masking_probability=0.15),
    "masking.probability=0.2 optimizer.beta2=0.9": changed(TINY, masking_probability=0.2, optimizer_beta2=0.9),
    # the two lengths go together, with the share of the second
    "segments.max_seq_length=256": with_lengths(256, None),
    "final_phase.max_seq_length=512": with_lengths(128, 512),
    "segments=full_sentences": with_lengths(128, None),
    "segments=google": with_lengths(128, None),
    "steps=1": with_lengths(128, None),
    "steps=2": TINY,
    "final_phase.share=0.2": changed(TINY, final_phase_share=0.2),
}


@pytest.mark.parametrize("words", ROWS)
def test_the_size_of_a_model_sets_what_the_user_does_not(words: str) -> None:
    assert values(compose("pretrain", [*NEEDED, *words.split()])) == ROWS[words]


FAMILIES = [path for path in sorted(Path(ROOT, "conf", "model").glob("*_mini.yaml")) if path.stem != "modern_mini"]


def test_the_mini_of_a_family_has_the_settings_that_its_file_promises() -> None:
    assert [path.stem.removesuffix("_mini") for path in FAMILIES] == [
        "albert",
        "deberta",
        "electra",
        "eurobert",
        "roberta",
    ]
    for path in FAMILIES:
        composed = compose("pretrain", [*NEEDED, f"model={path.stem}"])
        assert "From scratch: conf/from_scratch/mini.yaml" in path.read_text(encoding="utf-8")
        assert (at(composed, "optimizer.peak_learning_rate"), at(composed, "batch.sequences")) == (1e-3, 32), path


def test_python_and_the_settings_of_a_run_have_the_same_rules(tmp_path: Path) -> None:
    given = {"data_dir": "x", "model": "mini", "optimizer": {"beta2": 0.9}}
    assert values(compose_values("pretrain", given)) == changed(MINI, optimizer_beta2=0.9)
    saved = compose("pretrain", [*NEEDED, "model=base"])
    del saved["explicit_keys"]
    (tmp_path / "config.yaml").write_text(json.dumps(saved))
    assert values(compose_from_run("pretrain", str(tmp_path / "config.yaml"), [])) == BERT


def test_help_has_the_values_of_the_size(capsys: Capsys) -> None:
    def lines_of(*words: str) -> list[str]:
        assert run(["pretrain", "--help", *words]) == 0
        return capsys.readouterr().out.splitlines()

    for words, rate in (([], "2.0e-3"), (["model=small"], "3.0e-4"), (["model=base"], "1.0e-4")):
        assert any(line.startswith(f"  optimizer.peak_learning_rate={rate} ") for line in lines_of(*words))
    everything = lines_of("all", "model=mini")
    for setting in ("model.scale_outputs: true", "masking.probability: 0.3", "final_phase.max_seq_length: 128"):
        assert any(
            line.startswith(f"  {setting}  ") and "# " in line and "(model=mini: " in line for line in everything
        ), setting
    assert any(line.startswith("  optimizer.peak_learning_rate: 0.006") for line in lines_of("all", "optimizer=lamb"))


def test_a_run_that_began_with_other_values_keeps_them(prepared_dir: Path, tmp_path: Path, capsys: Capsys) -> None:
    """As one of a version without these defaults: with the same command it goes on as it began, and so does one of today."""
    berts_own = [
        f"{key}={value}".lower()
        for key, value in zip(KEYS, BERT, strict=True)
        if "length" not in key and "share" not in key
    ]
    words = ["pretrain", f"data_dir={prepared_dir}", "device=cpu", *TINY_SHAPE, "model=tiny"]
    words += ["segments.max_seq_length=32", "schedule.warmup_steps=0", "batch.micro_sequences=32"]
    for name, typed, beta2 in (("old", berts_own, 0.999), ("new", ["model.frequency_biases=true"], 0.98)):
        run_dir = tmp_path / name
        assert run([*words, f"output_dir={run_dir}", "steps=1", *typed]) == 0
        assert run([*words, f"output_dir={run_dir}", "steps=2"]) == 0, capsys.readouterr().err
        assert "resumed from step 1 of 2" in capsys.readouterr().out
        biases = load_file(run_dir / "model" / "model.safetensors")["cls.predictions.bias"]
        assert (float(biases.std()) > 0.5) == (name == "new")  # the frequencies of the tokens, from the start
        manifest = json.loads((run_dir / "manifest.json").read_text())
        assert manifest["identity"]["optimizer"]["beta2"] == beta2
        assert [change["key"] for change in manifest["changes"]] == ["steps"]
    old = [*words, f"output_dir={tmp_path / 'old'}", "steps=2"]
    assert run(old) == 0
    assert "done already" in capsys.readouterr().out
    assert run([*old, "optimizer.beta2=0.98"]) == 2
    assert "optimizer.beta2: 0.999 there, 0.98 here" in capsys.readouterr().err
    assert run([*old, "seed=1", "overwrite=true"]) == 0  # another run, with the defaults of today
    assert json.loads((tmp_path / "old" / "manifest.json").read_text())["identity"]["optimizer"]["beta2"] == 0.98
