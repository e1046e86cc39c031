"""Runs with other attentions, norms and poolings: killed and resumed, in two processes, saved, fine-tuned, used."""

import copy
import dataclasses
import json
import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import TINY_FINETUNE, Capsys, output_of, refused, small_config

import bertkit
from bertkit.base.files import sha256_file
from bertkit.cli import run
from bertkit.interop.load import load_packed
from bertkit.kernels.layout import Layout
from bertkit.model.attention_config import AttentionConfig
from bertkit.model.bert_config import NormConfig
from bertkit.model.heads import BertWithHeads
from bertkit.model.initialisation import init_weights, reinitialise_top
from bertkit.model.layers import freeze_below
from bertkit.train import loop
from bertkit.train.checkpoint_files import all_checkpoints
from bertkit.train.log import read_metrics

TINY = [
    "device=cpu", "model=medium", "model.hidden_size=32", "model.num_hidden_layers=2", "model.num_attention_heads=2", "model.intermediate_size=61",
    "model.max_position_embeddings=48", "segments.max_seq_length=40", "batch.sequences=6", "log.every_steps=1",
    "checkpoint.every_steps=1", "evaluation.every_steps=100", "evaluation.max_sequences=16", "schedule.warmup_steps=0",
    "optimizer.peak_learning_rate=1e-3",
]  # fmt: skip
EVERYTHING = [
    "attention.score=general", "attention.positions=rotary", "attention.pattern=window", "attention.window=3",
    "norm=pre", "norm.kind=rms", "pooling=feed_forward",
]  # fmt: skip
RUNS = {
    "everything": EVERYTHING,
    "score": ["attention.score=additive", "attention.additive_size=7"],
    "location": ["attention.score=location"],
    "positions": ["attention.positions=relative", "attention.max_distance=5"],
    "sinusoidal": ["attention.positions=sinusoidal"],
    "alibi": ["attention.positions=alibi"],
    "pattern": ["attention.pattern=bigbird", "attention.block_size=4", "attention.random_blocks=1"],
    "linformer": ["attention.pattern=linformer", "attention.compressed_size=11", "attention.compression_shared=key_value"],
    "causal": ["attention.pattern=causal", "pooling=mean", "objective=masked_lm"],
    "norm": ["norm=pre"],
    "rms": ["norm.kind=rms"],
    "pooling": ["pooling=mean"],
    "modern": ["model=modern_tiny", "attention.window=4"],
    "disentangled": ["attention=deberta", "attention.distance_maps=own"],
    "relative_bias": ["attention=mpnet", "attention.max_distance=12", "attention.distance_buckets=6"],
    "deberta": ["model=deberta_mini", "model.scale_outputs=false"],
}  # fmt: skip


def each_run(*quick: str) -> pytest.MarkDecorator:
    """Parametrise by all runs, of which all others are slow."""
    return pytest.mark.parametrize(
        "name", [pytest.param(name, marks=[] if name in quick else pytest.mark.slow) for name in RUNS]
    )


# what a model type of its own changes, tests of its files see; how a run is killed or split is the same for all
each_kind_of_run, each_type_of_run = each_run("everything"), each_run("everything", "modern", "deberta")


def pretrain(data: Path, output: Path, *more: str) -> int:
    return run(["pretrain", f"data_dir={data}", f"output_dir={output}", *TINY, *more])


# a process that is killed when it has taken three steps
KILLED = """
import os, signal, sys
from bertkit.cli import run
from bertkit.train import loop
real = loop.optimizer_step

def step(learner, course, number, *more, **named):
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(learner, course, number, *more, **named)

loop.optimizer_step = step
sys.exit(run(sys.argv[1:]))
"""


@dataclass(frozen=True)
class Finished:
    """A run of five steps that tests do not change, and its trained model."""

    run_dir: Path
    model: BertWithHeads


@pytest.fixture(scope="module")
def finished(prepared_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Finished]:
    made: dict[str, Finished] = {}

    def make(name: str) -> Finished:
        if name not in made:
            output, models, real = tmp_path_factory.mktemp("run") / "run", [], loop.optimizer_step

            def spied(*value: Any, **named: Any) -> Any:
                models.append(value[0].model)
                return real(*value, **named)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(loop, "optimizer_step", spied)
                assert pretrain(prepared_dir, output, "steps=5", *RUNS[name]) == 0
            assert len(models) == 5
            made[name] = Finished(output, models[-1].eval())
        return made[name]

    return make


def losses(run_dir: Path) -> list[float]:
    return [row["loss"] for row in read_metrics(run_dir / "metrics.jsonl")]


@each_kind_of_run
def test_killed_and_resumed_bit_for_bit(
    name: str, finished: Callable[[str], Finished], prepared_dir: Path, tmp_path: Path, python: Path
) -> None:
    whole, output, steps = finished(name).run_dir, tmp_path / "run", ["steps=5", *RUNS[name]]
    arguments = ["pretrain", f"data_dir={prepared_dir}", f"output_dir={output}", *TINY, *steps]
    killed = subprocess.run([python, "-c", KILLED, *arguments], capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert int(all_checkpoints(output)[0].name[5:]) in (2, 3)
    assert not (output / "model").exists()
    assert pretrain(prepared_dir, output, *steps) == 0
    assert len(losses(output)) == 5
    assert losses(output) == losses(whole)
    for file in ("model/model.safetensors", "checkpoints/step-00000005/optimizer.safetensors"):
        assert sha256_file(output / file) == sha256_file(whole / file)


@each_kind_of_run
def test_two_processes_train_what_one_does(
    name: str, prepared_dir: Path, tmp_path: Path, python: Path, torchrun: list[str]
) -> None:
    results = []
    for command in ([str(python), "-m", "bertkit"], torchrun):
        output = tmp_path / str(len(results))
        arguments = [
            "pretrain",
            f"data_dir={prepared_dir}",
            f"output_dir={output}",
            "reproducibility=strict",
            "steps=2",
        ]
        output_of([*command, *arguments, *TINY, *RUNS[name]], env={**os.environ, "OMP_NUM_THREADS": "1"})
        results.append((losses(output), sha256_file(output / "model" / "model.safetensors")))
        manifest = json.loads((output / "manifest.json").read_text())
        assert manifest["world_size"] == len(results)
    assert results[0] == results[1]


def type_of(name: str) -> str:
    return {"modern": "modernbert", "deberta": "deberta-v2"}.get(name, "bertkit")


@each_type_of_run
def test_variant_is_saved_and_loaded(
    name: str, finished: Callable[[str], Finished], prepared_dir: Path, tmp_path: Path
) -> None:
    run_dir, live = finished(name).run_dir, finished(name).model
    written = json.loads((run_dir / "model" / "config.json").read_text())
    assert written["model_type"] == type_of(name)
    assert bool(live.config.variant)
    if type_of(name) == "bertkit":
        variant = json.loads(json.dumps(live.config.variant))
        assert {key: written[key] for key in ("attention", "norm", "pooling")} == variant
    padded = bertkit.load_model(run_dir)
    loaded = load_packed(run_dir)[0]
    assert loaded.config == dataclasses.replace(live.config, **{"labels": loaded.config.labels})
    for parameter, value in live.state_dict().items():
        assert torch.equal(loaded.state_dict()[parameter], value), parameter
    lengths = torch.tensor([37, 5, 48])
    ids = torch.randint(5, live.config.vocab_size, (90,), generator=torch.Generator().manual_seed(0))
    layout = Layout.from_lengths(lengths)
    with torch.no_grad():
        ours = live(ids, torch.zeros_like(ids), layout)
        rows = torch.nn.utils.rnn.pad_sequence(ids.split(lengths.tolist()), batch_first=True)
        theirs = padded(rows, (torch.arange(48) < lengths[:, None]).long())
    is_token = torch.arange(48) < lengths[:, None]
    torch.testing.assert_close(theirs.last_hidden_state[is_token], ours.last_hidden_state, rtol=0, atol=1e-5)
    torch.testing.assert_close(theirs.logits["masked_lm"][is_token], ours.logits["masked_lm"], rtol=0, atol=1e-5)
    for head in ours.logits.keys() - {"masked_lm"}:
        torch.testing.assert_close(theirs.logits[head], ours.logits[head], rtol=0, atol=1e-5)


@each_type_of_run
def test_variant_is_fine_tuned_and_predicts(name: str, finished: Callable[[str], Finished], tmp_path: Path) -> None:
    start, task, output = finished(name).run_dir, tmp_path / "task", tmp_path / "fine"
    task.mkdir()
    for split, count in (("train", 16), ("dev", 8)):
        rows = [{"text": f"{'kan lon' if n % 3 else 'mir rur'} ten", "label": "ab"[n % 2]} for n in range(count)]
        (task / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = [*TINY_FINETUNE, "task.columns.text_pair=null"]
    assert run(["finetune", f"model_dir={start}", f"data_dir={task}", f"output_dir={output}", *settings]) == 0
    tuned, written = load_packed(output)[0], json.loads((output / "model" / "config.json").read_text())
    assert written["model_type"] == type_of(name)
    assert (tuned.config.attention, tuned.config.norm, tuned.config.pooling) == (
        finished(name).model.config.attention, finished(name).model.config.norm, finished(name).model.config.pooling,
    )  # fmt: skip
    before = finished(name).model.state_dict()
    trained = [each for each in before if ".slots." in each or ".attention.query" in each]
    assert not all(torch.equal(before[each], tuned.state_dict()[each]) for each in trained)
    places = [f"input={task / 'dev.jsonl'}", f"output={tmp_path / 'out.jsonl'}"]
    assert run(["predict", f"model_dir={output}", *places, "device=cpu"]) == 0
    predicted = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    measured = [json.loads(line) for line in (output / "predictions.jsonl").read_text().splitlines()]
    assert len(predicted) == len(measured) == 8
    for ours, theirs in zip(predicted, measured, strict=True):
        assert ours["label"] == theirs["label"]
        assert ours["probabilities"] == pytest.approx(theirs["probabilities"], abs=1e-6)
    texts = ["kan lon ten", "mir", "kan lon ten mir rur kan lon kan ten mir rur kan"]
    embed = bertkit.load_embedder(start, device="cpu")
    vectors = embed(texts)
    assert vectors.shape == (3, 32)
    np.testing.assert_allclose(vectors[1], embed([texts[1]])[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize(("attention", "name"), [
    (AttentionConfig(pattern="linformer", compressed_size=7), "bert.encoder.compression.key.weight"),
    (AttentionConfig(positions="disentangled"), "bert.encoder.positions.embedding.weight"),
    (AttentionConfig(positions="relative_bias"), "bert.encoder.positions.embedding.weight"),
])  # fmt: skip
def test_shared_parameters_belong_to_no_layer(attention: AttentionConfig, name: str) -> None:
    """Drawing the top anew leaves it alone, freezing the layers below too; freezing all freezes it and the last norm."""
    model = BertWithHeads(small_config(attention=attention, norm=NormConfig(placement="pre")))
    init_weights(model, 0.02, torch.Generator().manual_seed(0))
    encoder = model.bert.encoder
    assert sum(name.split(".")[2] in each for each in model.state_dict()) == 1
    before = model.get_parameter(name).detach().clone()
    reinitialise_top(model, 1, seed=3)
    assert torch.equal(model.get_parameter(name), before)
    freeze_below(model.train(), 2)
    assert model.get_parameter(name).requires_grad
    assert not any(each.requires_grad for each in encoder.layers[0].parameters())
    freeze_below(model.train(), len(encoder.layers) + 1)
    assert not any(each.requires_grad for each in model.bert.encoder.parameters())
    copied = copy.deepcopy(model)
    with torch.no_grad():
        copied.get_parameter(name).zero_()
    ids, layout = torch.arange(11), Layout.from_lengths(torch.tensor([11]))
    here, there = (each.eval()(ids, 0 * ids, layout).last_hidden_state for each in (model, copied))
    assert not torch.allclose(here, there)


REFUSED = [
    (["attention.positions=rotary", "model_dir=X"], "attention.positions: has no effect with model_dir="),
    (["attention.compressed_size=10000000000", "attention.pattern=linformer"], "compressed_size=10000000000: expected"),
]


@pytest.mark.parametrize(("more", "message"), REFUSED)
def test_settings_that_cannot_be_kept_are_refused(
    more: list[str], message: str, tmp_path: Path, capsys: Capsys
) -> None:
    refused(run(["pretrain", "data_dir=nowhere", f"output_dir={tmp_path / 'run'}", *more]), message, capsys)


def test_a_modern_bert_predicts_no_next_sentence(
    finished: Callable[[str], Finished], prepared_dir: Path, tmp_path: Path, capsys: Capsys
) -> None:
    """It is refused before the first step: the model could not be saved."""
    message = "the heads masked_lm and next_sentence: transformers has no such class of this model's type; for the masked LM alone set"
    refused(
        pretrain(prepared_dir, tmp_path / "new", "steps=5", *RUNS["modern"], "segments=pairs"),
        message,
        capsys,
        alone=True,
    )
    start = f"model_dir={finished('modern').run_dir}"
    capsys.readouterr()
    more = [each for each in TINY if not each.startswith("model")]
    arguments = ["pretrain", f"data_dir={prepared_dir}", f"output_dir={tmp_path / 'more'}", start, "steps=5", *more]
    refused(run(arguments), message, capsys, alone=True)
    assert run([*arguments, "segments=full_sentences"]) == 0
    content = json.loads((tmp_path / "more" / "model" / "config.json").read_text())
    assert content["architectures"] == ["ModernBertForMaskedLM"]
