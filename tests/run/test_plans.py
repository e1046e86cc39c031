"""A run is decided before a file is written."""

from pathlib import Path

from bertkit.base.typed_settings import build
from bertkit.jobs.pretraining_plan import plan_pretraining
from bertkit.settings.pretrain import PretrainSettings
from bertkit.settings.reading.compose import compose

SMALL = ["model=tiny", "model.hidden_size=32", "model.max_position_embeddings=48", "segments.max_seq_length=24"]


def test_nothing_is_auto_in_a_plan_and_no_file_is_written(prepared_dir: Path, tmp_path: Path) -> None:
    words = [
        f"data_dir={prepared_dir}",
        f"output_dir={tmp_path / 'run'}",
        "device=cpu",
        "attention.pattern=causal",
        *SMALL,
    ]
    settings = build(PretrainSettings, compose("pretrain", words))
    assert (settings.steps, settings.segments.kind) == ("auto", "pairs")
    plan = plan_pretraining(settings)
    assert plan is not None
    assert plan.settings.steps == plan.steps == plan.identity["steps"] == plan.length.steps > 0
    assert (plan.settings.segments.kind, plan.examples.segments) == ("full_sentences", plan.settings.segments)
    assert plan.examples.masking is None
    assert plan.identity["data_fingerprint"] == plan.dataset.fingerprint
    assert list(tmp_path.iterdir()) == []
