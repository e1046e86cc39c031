"""Every setting has a class, and a changed one is taken, said or refused accordingly."""

import contextlib
import dataclasses
import json
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from bertkit.base.errors import InputError, LockedError
from bertkit.base.files import LOCK
from bertkit.base.typed_settings import build, to_mapping
from bertkit.run import opening
from bertkit.run.directory import Changed, is_finished, read_manifest
from bertkit.run.resume_rules import (
    AT_START,
    FINETUNE,
    FIXED,
    FREE,
    PRETRAIN,
    WARN,
    Change,
    changes,
    class_of,
    identity_of,
)
from bertkit.settings.reading.compose import compose
from bertkit.settings.reading.names import schema_of

GIVEN = {
    "pretrain": ["data_dir=x", "output_dir=y", "init_from=z", "steps=100"],
    "finetune": ["task=squad1", "model_dir=x", "data_dir=z", "output_dir=y"],
}
RULES = {"pretrain": PRETRAIN, "finetune": FINETUNE}
CONTENT = {
    "data_fingerprint": "4f",
    "dev_split": "c3",
    "label_scale": 1.0,
    "starting_weights": {"model.safetensors": "a1"},
    "vocabulary": "b2",
}
CLASSES = {  # by hand; the others of a group are as it is
    "pretrain": {
        FREE: ["output_dir", "data_dir", "model_dir", "device", "recompute", "log.every_steps",
               "checkpoint.every_steps", "checkpoint.keep_last", "checkpoint.background", "evaluation.every_steps"],
        WARN: ["steps", "batch.micro_sequences", "batch.micro_tokens", "data.skip_steps"],
        AT_START: ["optimizer.name", "init_moments", "model.hidden_size", "segments.kind", "segments.next_sentence"],
        FIXED: ["seed", "batch.sequences", "optimizer.peak_learning_rate",
                "schedule.warmup_steps", "masking.probability", "masking.kind", "segments.max_seq_length", "precision"]
    },
    "finetune": {
        FREE: ["output_dir", "data_dir", "model_dir", "device", "log.every_steps", "checkpoint.every_steps"],
        WARN: ["batch.micro_sequences", "evaluation.patience"],
        AT_START: ["optimizer.name", "freeze", "reinit_layers", "task.labels"],
        FIXED: ["seed", "num_epochs", "task.max_seq_length", "optimizer.peak_learning_rate", "batch.sequences"]
    },
}  # fmt: skip


def settings_of(command: str) -> dict[str, Any]:
    return to_mapping(build(schema_of(command), compose(command, GIVEN[command])))


def leaves(mapping: Mapping[str, Any], prefix: str = "") -> list[str]:
    results: list[str] = []
    for key, value in mapping.items():
        results += leaves(value, f"{prefix}{key}.") if isinstance(value, Mapping) else [prefix + key]
    return results


def changed(mapping: dict[str, Any], key: str) -> tuple[dict[str, Any], Any, Any]:
    copy = json.loads(json.dumps(mapping))
    *groups, leaf = key.split(".")
    inner = copy
    for group in groups:
        inner = inner[group]
    old = inner[leaf]
    inner[leaf] = not old if isinstance(old, bool) else old + 1 if isinstance(old, (int, float)) else ["other"]
    return copy, old, inner[leaf]


@pytest.mark.parametrize("command", ["pretrain", "finetune"])
def test_every_setting_when_it_changes(command: str, tmp_path: Path) -> None:
    settings, rules = settings_of(command), RULES[command]
    identity = identity_of(settings, rules) | CONTENT
    with opening.lock_run(tmp_path, settings, identity, {}, rules, ()) as changes:
        assert changes == []
    keys = leaves(settings)
    count: Counter[str] = Counter()
    for key in keys:
        other, old, new = changed(settings, key)
        theirs = identity_of(other, rules) | CONTENT
        rule = class_of(key, rules)
        count[rule] += 1
        if rule in (FIXED, AT_START):
            with pytest.raises(InputError) as error:
                opening.check(tmp_path, theirs, rules, ())
            assert f"{key}: {old!r} there, {new!r} here" in str(error.value)
            hint = f"resume.allow=[{key}]" if rule == FIXED else f"restore the original value of {key}"
            assert hint in str(error.value)
            assert "\n" not in str(error.value)
        if rule == AT_START:
            with pytest.raises(InputError):
                opening.check(tmp_path, theirs, rules, [key])
            continue
        allow = [key] if rule == FIXED else []
        expected = [] if rule == FREE else [Change(key, old, new)]
        assert opening.check(tmp_path, theirs, rules, allow) == expected, key
    least = {"pretrain": {FREE: 15, WARN: 3, FIXED: 22}, "finetune": {FREE: 10, WARN: 4, FIXED: 70}}[command]
    assert all(count[rule] >= number for rule, number in least.items()), count


@pytest.mark.parametrize("command", ["pretrain", "finetune"])
def test_resume_rules_are_those_of_the_table(command: str) -> None:
    for rule, keys in CLASSES[command].items():
        for key in keys:
            assert key in leaves(settings_of(command)), key
            assert class_of(key, RULES[command]) == rule, key
    names = {key.rsplit(".", n)[0] for key in leaves(settings_of(command)) for n in range(4)}
    names |= {field.name for field in dataclasses.fields(schema_of(command))}  # some are written only if they are set
    assert set(RULES[command]) - set(CONTENT) <= names  # nothing is classed that is no setting


def test_a_setting_without_a_class_is_a_fault() -> None:
    with pytest.raises(KeyError, match=r"'surprise\.level'"):
        identity_of({"surprise": {"level": 3}}, PRETRAIN)


ALLOWED = [
    (["optimizer.peak_learning_rate"], True),
    (["optimizer"], True),  # a group
    (["seed", "optimizer"], True),
    (["seed"], False),
    (["optimizer.peak"], "resume.allow: no fixed setting 'optimizer.peak'"),
    (["optimizr"], "resume.allow: no fixed setting 'optimizr'; did you mean 'optimizer'?"),
    (["log.every_steps"], "resume.allow: no fixed setting 'log.every_steps'"),
]


@pytest.mark.parametrize(("allow", "outcome"), ALLOWED)
def test_change_is_allowed_by_its_name_only(tmp_path: Path, allow: list[str], outcome: bool | str) -> None:
    settings = settings_of("pretrain")
    identity = identity_of(settings, PRETRAIN) | CONTENT
    opening.write_identity(tmp_path, settings, identity, {})
    theirs = identity_of(changed(settings, "optimizer.peak_learning_rate")[0], PRETRAIN) | CONTENT
    if outcome is True:
        assert len(opening.check(tmp_path, theirs, PRETRAIN, allow)) == 1
        return
    with pytest.raises(InputError) as error:
        opening.check(tmp_path, theirs, PRETRAIN, allow)
    expected = outcome or f"output_dir={tmp_path} holds another run (optimizer.peak_learning_rate"
    assert str(error.value).startswith(expected)


def test_error_about_many_changes_keeps_its_remedy(tmp_path: Path) -> None:
    settings = other = settings_of("pretrain")
    opening.write_identity(tmp_path, settings, identity_of(settings, PRETRAIN) | CONTENT, {})
    for key in (
        "seed",
        "batch.sequences",
        "optimizer.peak_learning_rate",
        "segments.max_seq_length",
        "segments.short_seq_prob",
    ):
        other = changed(other, key)[0]
    with pytest.raises(InputError, match=r"holds another run \(.*, or set overwrite=true to replace it$"):
        opening.check(tmp_path, identity_of(other, PRETRAIN) | dict.fromkeys(CONTENT, "x" * 64), PRETRAIN, ())


def test_overwrite_keeps_the_old_run_until_the_new_one_has_a_checkpoint(tmp_path: Path) -> None:
    directory, kept = tmp_path / "run", tmp_path / ".run.replaced"
    settings = settings_of("pretrain")
    other = changed(settings, "seed")[0]
    (directory / "checkpoints" / "step-3").mkdir(parents=True)
    opening.write_identity(directory, settings, identity_of(settings, PRETRAIN) | CONTENT, {})

    def replace(overwrite: bool) -> contextlib.AbstractContextManager[list[Change]]:
        own = {**other, "overwrite": overwrite}
        return opening.lock_run(directory, own, identity_of(own, PRETRAIN) | CONTENT, {}, PRETRAIN, ())

    with pytest.raises(InputError, match="set overwrite=true to replace it"), replace(False):
        pass

    def fail(error: BaseException) -> None:
        with replace(True):
            assert (kept / "checkpoints" / "step-3").is_dir()
            assert not (directory / "checkpoints").exists()
            raise error

    for error in (InputError("wrong"), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            fail(error)  # before a checkpoint: the old run is put back
        assert (directory / "checkpoints" / "step-3").is_dir()
        assert not kept.exists()
    with replace(True):
        with pytest.raises(LockedError), replace(True):  # the same command in another process
            pass
        assert (kept / "checkpoints" / "step-3").is_dir()
        assert (directory / "manifest.json").is_file()
        (directory / "checkpoints" / "step-1").mkdir(parents=True)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert [path.name for path in (directory / "checkpoints").iterdir()] == ["step-1"]
    with replace(True):  # the same run: nothing is replaced
        assert (directory / "checkpoints" / "step-1").is_dir()


def test_overwrite_deletes_nothing_but_a_run(tmp_path: Path, prepared_dir: Path) -> None:
    """A prepared dataset has a manifest with an identity, too; and users keep notes and exports in the directory of a run."""
    settings = settings_of("pretrain")
    own = {**changed(settings, "seed")[0], "overwrite": True}
    run, dataset = tmp_path / "run", tmp_path / "dataset"
    (run / "exported").mkdir(parents=True)
    opening.write_identity(run, settings, identity_of(settings, PRETRAIN) | CONTENT, {})
    shutil.copytree(prepared_dir, dataset)
    for directory, expected in ((run, "would delete 'exported'"), (dataset, "does not belong to a run")):
        before = {path for path in directory.rglob("*") if path.name != LOCK}
        opened = opening.lock_run(directory, own, identity_of(own, PRETRAIN) | CONTENT, {}, PRETRAIN, ())
        with pytest.raises(InputError, match=expected), opened:
            (directory / "checkpoints" / "step-1").mkdir(parents=True)
        assert before == {path for path in directory.rglob("*") if path.name != LOCK}


def test_a_change_is_recorded_with_its_step(tmp_path: Path) -> None:
    """The settings then belong to the run; if the run returns to an earlier checkpoint, the change starts there."""
    settings = settings_of("pretrain")
    with opening.lock_run(tmp_path, settings, identity_of(settings, PRETRAIN) | CONTENT, {}, PRETRAIN, ()):
        pass
    (tmp_path / "eval.json").write_text("{}")
    longer, old, new = changed(settings, "steps")
    identity = identity_of(longer, PRETRAIN) | CONTENT
    with opening.lock_run(tmp_path, longer, identity, {}, PRETRAIN, ()) as changes:
        lines = opening.record_changes(tmp_path, changes, 40, longer, identity)
    assert lines == [f"steps: {old} up to step 40, {new} from here on"]
    assert not (tmp_path / "eval.json").exists()
    manifest = read_manifest(tmp_path)
    assert manifest.changes == (Changed("steps", old, new, step=40),)
    assert manifest.identity["steps"] == yaml.safe_load((tmp_path / "config.yaml").read_text())["steps"] == new
    with opening.lock_run(tmp_path, longer, identity, {}, PRETRAIN, ()) as changes:
        assert changes == []
        assert opening.record_changes(tmp_path, changes, 30, longer, identity) == []
    assert [entry.step for entry in read_manifest(tmp_path).changes] == [30]


FINISHED = [("steps", False), ("batch.micro_tokens", True), ("seed", False), ("log.every_steps", True)]


@pytest.mark.parametrize(("key", "finished"), FINISHED)
def test_a_finished_run_stays_finished_unless_there_is_more_to_do(tmp_path: Path, key: str, finished: bool) -> None:
    settings = settings_of("pretrain")
    opening.write_identity(tmp_path, settings, identity_of(settings, PRETRAIN) | CONTENT, {})
    (tmp_path / "eval.json").write_text("{}")
    (tmp_path / "model").mkdir()
    other = identity_of(changed(settings, key)[0], PRETRAIN)
    assert is_finished(tmp_path, other, PRETRAIN) is finished


def test_a_file_of_the_tokenizer_that_earlier_versions_did_not_hash() -> None:
    """Its hash is no change in a run that has none, and is one in a run that has another."""
    without = {"starting_weights": {"model.safetensors": "a1"}}
    with_file = {"starting_weights": {"model.safetensors": "a1", "special_tokens_map.json": "b2"}}
    other = {"starting_weights": {"model.safetensors": "a1", "special_tokens_map.json": "c3"}}
    assert changes(without, with_file) == []
    assert changes(other, with_file) == [Change("starting_weights.special_tokens_map.json", "c3", "b2")]
