"""A run with a longer final phase: what each step sees, and that stops and processes change nothing."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import Capsys, refused, weights_of

from bertkit.base.errors import InputError
from bertkit.base.tensor_files import read_tensors
from bertkit.base.typed_settings import build
from bertkit.cli import run
from bertkit.data.batches.examples import open_examples
from bertkit.data.batches.sampling import DatasetExamples, Sampler
from bertkit.data.corpus.prepared import PreparedDataset, open_prepared
from bertkit.data.data_config import MaskingConfig, SegmentsConfig
from bertkit.jobs.phases import LengthPhases, choose_micro_sequences, make_phases
from bertkit.settings.pretrain import PretrainSettings
from bertkit.settings.reading.compose import compose
from bertkit.train import micro_batches
from bertkit.train.checkpoint_files import all_checkpoints
from bertkit.train.log import read_metrics

SMALL = [
    "device=cpu", "model=medium", "model.num_hidden_layers=2", "model.num_attention_heads=2", "model.hidden_size=32", "model.intermediate_size=64", "model.max_position_embeddings=64",
    "segments.max_seq_length=24", "final_phase.max_seq_length=56", "final_phase.share=0.4", "steps=10",
    "batch.sequences=12", "log.every_steps=1", "evaluation.every_steps=3", "checkpoint.every_steps=1",
    "checkpoint.keep_last=20", "optimizer.peak_learning_rate=1e-3", "schedule.warmup_steps=2",
]  # fmt: skip


def settings_of(*more: str) -> PretrainSettings:
    return build(PretrainSettings, compose("pretrain", ["data_dir=x", "output_dir=y", *SMALL, *more]))


def examples_of(dataset: PreparedDataset, settings: PretrainSettings) -> DatasetExamples:
    return open_examples(dataset, settings.segments, settings.masking, settings.explicit_keys)


def pretrain(data: Path, output: Path, *more: str) -> int:
    return run(["pretrain", f"data_dir={data}", f"output_dir={output}", *SMALL, *more])


def rows(run_dir: Path) -> list[dict[str, float]]:
    return [{**row, "tokens_per_second": 0} for row in read_metrics(run_dir / "metrics.jsonl")]


def _phases(
    settings: PretrainSettings, steps: int, dataset: PreparedDataset, cache: Path, sizes: list[int]
) -> LengthPhases:
    return make_phases(settings, steps, examples_of(dataset, settings), cache, sizes)


@pytest.mark.parametrize(
    ("steps", "share", "border"), [(10, 0.4, 6), (1_000_000, 0.1, 900_000), (7, 0.1, 6), (2, 0.5, 1)]
)
def test_final_phase_begins_at_its_share(
    prepared_dir: Path, tmp_path: Path, steps: int, share: float, border: int
) -> None:
    settings = settings_of(f"steps={steps}", f"final_phase.share={share}")
    first, final = _phases(settings, steps, open_prepared(prepared_dir), tmp_path, [5, 3]).all
    assert (first.first_step, first.last_step, final.first_step, final.last_step) == (0, border, border, steps)
    assert (len(first.micro_batches), len(final.micro_batches)) == (3, 4)


def test_the_work_of_a_run_counts_the_tokens_of_both_lengths(prepared_dir: Path, tmp_path: Path) -> None:
    phases = _phases(settings_of(), 10, open_prepared(prepared_dir), tmp_path, [5, 3])
    short, long = 12 * 24, 12 * 56
    assert [phases.most_tokens(steps) for steps in (0, 5, 6, 7, 10)] == [
        0,
        5 * short,
        6 * short,
        6 * short + long,
        6 * short + 4 * long,
    ]


def test_a_run_without_a_final_phase_is_one_phase(prepared_dir: Path, tmp_path: Path) -> None:
    settings = settings_of("final_phase.max_seq_length=null")
    (only,) = _phases(settings, 10, open_prepared(prepared_dir), tmp_path, [5]).all
    assert (only.first_step, only.last_step, only.sampler.segments.max_seq_length) == (0, 10, 24)


@pytest.mark.parametrize(("more", "expected"), [
    ([], [6, 6]),
    (["batch.sequences=256"], [64, 32]),  # 2,048 tokens at once: at most 85 of 24 and 36 of 56, in equal parts
    (["batch.micro_sequences=5"], [5, 5]),
    (["batch.micro_tokens=170"], [7, 3]),
])  # fmt: skip
def test_micro_batches_depend_on_the_length(more: list[str], expected: list[int]) -> None:
    assert choose_micro_sequences(settings_of(*more), "cpu", 1) == tuple(expected)


def test_batches_are_those_of_a_sampler_of_the_length(prepared_dir: Path, tmp_path: Path) -> None:
    """Of each phase, from the beginning of that sampler's first epoch, whatever the phase before."""
    dataset = open_prepared(prepared_dir)
    both = _phases(settings_of(), 10, dataset, tmp_path, [5, 3])
    masking = MaskingConfig(0.15, 0.8, 0.1)
    longest = []
    for phase, length, size in zip(both.all, (24, 56), (5, 3), strict=True):
        segments = SegmentsConfig("pairs", length, 0.1, "nsp")
        alone = Sampler(dataset.splits["train"], dataset.tokenizer.facts, segments, masking, seed=0)
        for step in range(phase.first_step, phase.last_step):
            ranges = [(first, min(first + size, 12)) for first in range(0, 12, size)]
            expected = alone.micro_batches(step - phase.first_step, 12, ranges)
            actual = both.micro_batches(step, 0, 1)
            assert [number for number, _ in actual] == list(range(len(ranges)))
            for (_, batch), other in zip(actual, expected, strict=True):
                for name in ("input_ids", "token_type_ids", "sequence_lengths", "masked_positions"):
                    np.testing.assert_array_equal(getattr(batch, name), getattr(other, name))
                assert [*batch.targets] == [*other.targets] == ["masked_lm", "next_sentence"]
                for head, target in batch.targets.items():
                    np.testing.assert_array_equal(target.labels, other.targets[head].labels)
        longest.append(max(batch.sequence_lengths.max() for _, batch in actual))
    assert longest[0] <= 24 < longest[1] <= 56
    assert len({path.name.split("-")[-1] for path in tmp_path.iterdir()}) == 2  # a cache for each length


def test_what_a_run_says_and_writes(prepared_dir: Path, tmp_path: Path, capsys: Capsys) -> None:
    assert pretrain(prepared_dir, tmp_path / "run") == 0
    printed = capsys.readouterr().out.splitlines()
    spoken = [line.split(":")[0] for line in printed if "sequences of up to" in line]
    assert spoken == ["steps 1 to 6, sequences of up to 24 tokens", "steps 7 to 10, sequences of up to 56 tokens"]
    at = [index for index, line in enumerate(printed) if line.startswith(("step 6/", "steps 7 to", "step 7/"))]
    assert at == sorted(at)
    assert len(at) == 3
    state = json.loads((all_checkpoints(tmp_path / "run")[0] / "state.json").read_text())
    assert state["chosen"]["cut"] == [6, 6]
    logged = rows(tmp_path / "run")
    assert [row["step"] for row in logged] == list(range(1, 11))
    assert [row["step"] for row in logged if "eval_mlm_loss" in row] == [3, 6, 9, 10]
    # one schedule over both phases: linear from the end of the warm-up to the last step
    rates = [0, 0.5, *((10 - step) / 8 for step in range(2, 10))]
    assert [row["learning_rate"] for row in logged] == pytest.approx([1e-3 * rate for rate in rates])
    assert "| final phase | max_seq_length 56, share 0.4 |" in (tmp_path / "run" / "model" / "README.md").read_text()
    assert pretrain(prepared_dir, tmp_path / "run") == 0
    assert "done already" in capsys.readouterr().out


def test_evaluation_has_the_length_of_the_phase(prepared_dir: Path, tmp_path: Path, capsys: Capsys) -> None:
    """What the run measured at a step is what evaluate measures on its checkpoint at that length, and at no other."""
    assert pretrain(prepared_dir, tmp_path / "run", "evaluation.every_steps=1") == 0
    logged = {row["step"]: row["eval_mlm_loss"] for row in rows(tmp_path / "run")}
    measured: dict[tuple[int, int], float] = {}
    for path in all_checkpoints(tmp_path / "run"):
        step = int(path.name[5:])
        if step in (5, 6, 7, 10):
            for length in (24, 56):
                capsys.readouterr()
                arguments = [f"model_dir={path}", f"data_dir={prepared_dir}", f"segments.max_seq_length={length}"]
                assert run(["evaluate", *arguments, "device=cpu", "split=held_out"]) == 0
                measured[step, length] = json.loads(capsys.readouterr().out)["mlm_loss"]
    for step, length, other in ((5, 24, 56), (6, 24, 56), (7, 56, 24), (10, 56, 24)):
        assert logged[step] == pytest.approx(measured[step, length], abs=1e-6)
        assert abs(logged[step] - measured[step, other]) > 1e-4
    assert json.loads((tmp_path / "run" / "eval.json").read_text())["mlm_loss"] == logged[10]


EVERYWHERE = ((3,), (5,), (6,), (7,), (8,), (9, 6, 2))


@pytest.mark.parametrize(("optimizer", "all_cuts"), [
    ("adamw", ((6,), (8, 5))),
    pytest.param("adamw", EVERYWHERE, marks=pytest.mark.slow),
    pytest.param("lamb", EVERYWHERE, marks=pytest.mark.slow),
])  # fmt: skip
def test_resumed_in_each_phase_and_at_the_border_bit_for_bit(
    prepared_dir: Path, tmp_path: Path, optimizer: str, all_cuts: tuple[tuple[int, ...], ...]
) -> None:
    """Cut a finished run back to a checkpoint and resume it; once through several cuts in a row."""
    more = [f"optimizer={optimizer}", "optimizer.peak_learning_rate=1e-3"]
    assert pretrain(prepared_dir, tmp_path / "whole", *more) == 0
    whole = weights_of(tmp_path / "whole"), rows(tmp_path / "whole")
    for cuts in all_cuts:
        cut_run = tmp_path / "-".join(map(str, cuts))
        shutil.copytree(tmp_path / "whole", cut_run)
        for cut in cuts:
            for name in ("model", "cache"):
                shutil.rmtree(cut_run / name)
            (cut_run / "eval.json").unlink()
            for path in all_checkpoints(cut_run):
                if int(path.name[5:]) > cut:
                    shutil.rmtree(path)
            assert pretrain(prepared_dir, cut_run, *more) == 0
            assert (weights_of(cut_run), rows(cut_run)) == whole, cut


def test_the_micro_batches_of_a_run_stay_as_it_chose_them(
    prepared_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also on a machine with other memory: dropout and rounding depend on them."""
    assert pretrain(prepared_dir, tmp_path / "run") == 0
    whole = weights_of(tmp_path / "run")
    for path in all_checkpoints(tmp_path / "run")[:6]:
        shutil.rmtree(path)
    (tmp_path / "run" / "eval.json").unlink()
    monkeypatch.setitem(micro_batches.AUTO_MICRO_TOKENS, "cpu", 100)
    assert choose_micro_sequences(settings_of(), "cpu", 1) == (4, 1)
    assert pretrain(prepared_dir, tmp_path / "run") == 0
    assert weights_of(tmp_path / "run") == whole
    assert pretrain(prepared_dir, tmp_path / "other") == 0
    assert weights_of(tmp_path / "other") != whole


def test_a_final_phase_is_part_of_what_a_run_is(prepared_dir: Path, tmp_path: Path, capsys: Capsys) -> None:
    assert pretrain(prepared_dir, tmp_path / "run") == 0
    refused(pretrain(prepared_dir, tmp_path / "run", "final_phase.share=0.3"), "final_phase.share: 0.4 there", capsys)
    assert pretrain(prepared_dir, tmp_path / "one", "final_phase.max_seq_length=null") == 0
    assert weights_of(tmp_path / "one") != weights_of(tmp_path / "run")
    first = [rows(tmp_path / name)[:6] for name in ("one", "run")]
    assert [row["loss"] for row in first[0]] == [row["loss"] for row in first[1]]  # until the border


REFUSED = [
    ([*SMALL, "final_phase.max_seq_length=24"], "max_seq_length=24: expected more than segments.max_seq_length=24"),
    ([*SMALL, "final_phase.max_seq_length=65"], "max_position_embeddings=64; lower final_phase.max_seq_length"),
    ([*SMALL, "final_phase.share=0.01"], "final_phase.share=0.01 of steps=10 leaves a phase without steps"),
    ([*SMALL, "init_moments=true"], "init_moments=true: has no effect without model_dir="),
    (["segments=google", "final_phase.max_seq_length=100"], "start a second run"),
    (
        ["model=base", "final_phase.share=0.3"],
        "final_phase.share=0.3: has no effect without final_phase.max_seq_length=",
    ),
]


@pytest.mark.parametrize(("more", "message"), REFUSED)
def test_impossible_phases_are_refused(more: list[str], message: str) -> None:
    with pytest.raises(InputError) as error:
        build(PretrainSettings, compose("pretrain", ["data_dir=x", "output_dir=y", *more]))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_moments_to_start_from(prepared_dir: Path, tmp_path: Path) -> None:
    """The first update of a run adds the same gradient to them that it adds to nothing otherwise; counts start anew."""
    common = ["final_phase.max_seq_length=null", "schedule.warmup_steps=0", "optimizer=lamb"]
    assert pretrain(prepared_dir, tmp_path / "first", *common, "steps=4") == 0
    more = [*common, "steps=1", f"init_from={tmp_path / 'first'}"]
    assert pretrain(prepared_dir, tmp_path / "with", *more, "init_moments=true") == 0
    assert pretrain(prepared_dir, tmp_path / "without", *more) == 0
    newest = {name: all_checkpoints(tmp_path / name)[0] for name in ("first", "with", "without")}
    old, moved, fresh = (read_tensors(newest[name] / "optimizer.safetensors") for name in newest)
    assert len(old) > 60
    for name in old:
        beta = 0.9 if name.endswith("exp_avg") else 0.999
        assert float((moved[name] - beta * old[name] - fresh[name]).abs().max()) < 1e-7, name
    assert max(float(old[name].abs().max()) for name in old) > 1e-3
    states = [json.loads((newest[name] / "state.json").read_text())["num_updates"] for name in newest]
    assert states == [4, 1, 1]
    identity = json.loads((tmp_path / "with" / "manifest.json").read_text())["identity"]
    assert "optimizer.safetensors" in identity["starting_weights"]


def test_a_start_that_does_not_fit_is_refused(prepared_dir: Path, tmp_path: Path, capsys: Capsys) -> None:
    one_phase = ["final_phase.max_seq_length=null", "init_moments=true"]
    assert pretrain(prepared_dir, tmp_path / "run", one_phase[0], "steps=2") == 0
    for source, more, message in (
        ("run/model", one_phase, "run/model has no optimizer state"),
        ("run", [*one_phase, "segments=full_sentences"], "set init_moments=false"),
        ("run", [*one_phase, "optimizer=lamb"], "was trained with optimizer=adamw"),
        ("run", ["final_phase.max_seq_length=65"], "max_seq_length=65 exceeds the model's max_position_embeddings=64"),
    ):
        start = f"init_from={tmp_path / source}"
        refused(pretrain(prepared_dir, tmp_path / "next", "steps=2", start, *more), message, capsys)
        assert not (tmp_path / "next").exists()
