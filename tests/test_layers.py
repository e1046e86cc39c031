"""Imports point down, through doors; each third-party library has its home; light modules stay light.

`python tests/house.py` prints what is measured here of the code's shape, and more.
"""

import ast
import functools
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from conftest import output_of
from house import ROOT, arrows, circles, file_imports, functions, imports, module_of, modules, numbers, room, walk

from bertkit.commands import COMMANDS

CORE = ("data", "model", "train", "kernels", "base")
BELOW_STAGES = ("settings", "jobs", "inference", "run", "objectives", "launch", "tasks", "interop", "display", *CORE)
# a room -> the rooms that it may import
RULE = {
    "cli": ("help", "commands", "settings", "launch", "base"),
    "help": ("commands", "settings", "base"),
    "estimators": ("functions", "inference", "settings", "base"),
    "training": ("commands", "functions", *BELOW_STAGES),
    "functions": ("commands", "settings", "launch", "tasks", "base"),
    "commands": ("settings", "stages", "apps", "launch", "tasks", "base"),
    "stages": ("apps", *BELOW_STAGES),
    "apps": tuple(name for name in BELOW_STAGES if name != "jobs"),
    "jobs": ("settings", "inference", "run", "objectives", "launch", "tasks", "interop", "display", *CORE),
    "inference": ("settings", "run", "objectives", "launch", "tasks", "interop", "display", *CORE),
    "run": ("settings", "objectives", "launch", "tasks", "interop", "display", *CORE),
    "objectives": CORE,
    "settings": ("launch", "tasks", "data", "model", "train", "base"),
    "launch": ("base",),
    "tasks": CORE,
    "interop": CORE,
    "display": CORE,
    "data": ("base",),
    "model": ("kernels", "base"),
    "train": ("kernels", "base"),
    "kernels": ("base",),
    "base": (),
}
STRANGERS = {("bertkit.stages.glue", "bertkit.stages.finetune")}  # the one stage that runs another
THIRD_PARTY = {
    "hydra": ("settings",),
    "omegaconf": ("settings",),
    "accelerate": ("train",),
    "transformers": ("interop",),
    "sentence_transformers": (),
    "huggingface_hub": ("interop",),
    "google_crc32c": ("interop", "apps"),
    "tokenizers": ("data",),
    "datasets": ("data", "tasks"),
    "evaluate": ("tasks",),
    "sklearn": ("tasks", "estimators"),
    "scipy": ("tasks", "apps", "inference"),
    "jinja2": ("display",),
    "seqeval": ("tasks",),
    "sacrebleu": ("tasks",),
    "rouge_score": ("tasks",),
    "starlette": ("apps",),
    "uvicorn": ("apps",),
    "fastapi": ("apps",),
    "pydantic": ("apps",),
    "prometheus_client": ("apps",),
    "uvloop": ("apps",),
}
LIGHT = (
    "bertkit", "bertkit.cli", "bertkit.help", "bertkit.commands", "bertkit.settings", "bertkit.settings.command", "bertkit.launch.launcher",
    "bertkit.launch.world",
)  # fmt: skip
CONFIGS = (
    "bertkit.data.data_config", "bertkit.model.bert_config", "bertkit.tasks.task_config", "bertkit.train.train_config",
)  # fmt: skip
HEAVY = ("torch", "transformers", "datasets", "tokenizers", "hydra", "omegaconf", "accelerate", "numpy", "yaml")


@functools.cache
def doors(where: str) -> set[str]:
    """The modules of a room that outsiders may import: those that its docstring lists, a line each; and every command's settings."""
    tree = ast.parse(modules(ROOT)[f"bertkit.{where}"].read_text(encoding="utf-8"))
    text = ast.get_docstring(tree, clean=False) or ""
    listed = re.findall(r"^    ([a-z_.]+) +\S", text, flags=re.MULTILINE)
    return {f"bertkit.{where}.{name}" for name in (*listed, *(COMMANDS if where == "settings" else ()))}


def faults(result: Mapping[str, set[str]]) -> list[str]:
    """Every import that the rules forbid, given the imports of each module."""
    known, wrong = modules(ROOT), []
    rooms = {name for name in RULE if (ROOT / "bertkit" / name).is_dir()}
    for module, names in result.items():
        here = room(module)
        for name in sorted(names):
            target, top = module_of(name, known), name.split(".")[0]
            if target is None:
                if top in THIRD_PARTY and here not in THIRD_PARTY[top]:
                    wrong.append(f"{module} imports {top}")
                continue
            there = room(target)
            is_sibling = here == there == "stages" and module != target and target != "bertkit.stages"
            if is_sibling and (module, target) not in STRANGERS:
                wrong.append(f"{module} imports {name}: stages are strangers")
            if there in ("", here) or here in ("", "__main__"):
                continue
            if there not in RULE.get(here, ()):
                wrong.append(f"{module} imports {name}: {here} may not look into {there}")
            elif here == "settings" and there != "base" and not target.endswith("config"):
                wrong.append(f"{module} imports {name}: of other rooms only their settings")
            elif (
                here not in ("cli", "commands", "functions")
                and module != "bertkit.stages.glue"  # starts the workers of each run
                and there == "launch"
                and target.startswith("bertkit.launch.launcher")
            ):
                wrong.append(f"{module} imports {name}: the launcher is the command line's")
            elif there in rooms and target not in doors(there) and target != f"bertkit.{there}":
                wrong.append(f"{module} imports {name}: no door of {there}")
    return wrong


def test_imports_point_down() -> None:
    actual = {module: imports(path, False) for module, path in modules(ROOT).items()}
    assert len(actual) >= 80
    assert sum(len(names) for names in actual.values()) > 300
    assert faults(actual) == []


def test_every_room_has_a_rule_and_every_command_a_page() -> None:
    folders = {path.name for path in (ROOT / "bertkit").iterdir() if (path / "__init__.py").is_file()}
    assert folders | {"cli", "help", "commands", "estimators", "functions"} == set(RULE)
    assert {*RULE, "", "__main__"} >= set(arrows(ROOT))
    pages = {name.removeprefix("bertkit.stages.") for name in modules(ROOT) if name.startswith("bertkit.stages.")}
    assert pages | {"serve"} == set(COMMANDS)
    for folder in folders:  # a door that is listed is there
        assert doors(folder) <= set(modules(ROOT)), folder
        assert doors(folder) or folder == "stages", folder


def test_the_guide_draws_the_rule() -> None:
    """The line of the floors in CONTRIBUTING.md: a room may import the rooms to its right."""
    text = (ROOT / ".github" / "CONTRIBUTING.md").read_text(encoding="utf-8")
    floors = [floor.split(" | ") for floor in re.findall(r"^cli -> .*", text, flags=re.MULTILINE)[0].split(" -> ")]
    number = {name: place for place, floor in enumerate(floors) for name in floor}
    assert set(number) == set(RULE)
    assert [(here, there) for here, rooms in RULE.items() for there in rooms if number[there] <= number[here]] == []


FORBIDDEN = [
    ("bertkit.stages.pretrain", "bertkit.stages.evaluate.run"),  # a stage imports a stage
    ("bertkit.run.trainer", "bertkit.stages.pretrain.run"),  # a helper imports a stage
    ("bertkit.data.batches.masking", "bertkit.kernels.layout.Layout"),  # siblings
    ("bertkit.data.batches.masking", "bertkit.train.losses.LossTerm"),
    ("bertkit.model.heads", "bertkit.data.corpus.tokenizer.Tokenizer"),
    ("bertkit.model.heads", "bertkit.train.losses.LossTerm"),
    ("bertkit.train.loop", "bertkit.model.bert.Bert"),
    ("bertkit.train.loop", "bertkit.data.batches.sampling"),
    ("bertkit.train.loop", "bertkit.run.trainer"),
    ("bertkit.tasks.scoring.metrics", "bertkit.interop.load"),
    ("bertkit.interop.load", "bertkit.tasks.scoring.metrics"),
    ("bertkit.interop.load", "bertkit.stages.export.run"),
    ("bertkit.display.report", "bertkit.run.directory"),
    ("bertkit.stages.pretrain", "bertkit.cli.run"),
    ("bertkit.stages.pretrain", "bertkit.launch.launcher.start"),
    ("bertkit.settings.pretrain", "bertkit.data.corpus.tokenizer.Tokenizer"),
    ("bertkit.base.errors", "bertkit.train.loop"),
    ("bertkit.stages.export", "bertkit.interop.google.bundle"),  # no door
    ("bertkit.stages.pretrain", "omegaconf"),
    ("bertkit.cli", "hydra.compose"),
    ("bertkit.model.heads", "accelerate.Accelerator"),
    ("bertkit.stages.export", "transformers"),
    ("bertkit.stages.export", "huggingface_hub.snapshot_download"),
    ("bertkit.train.checkpoint", "google_crc32c"),
    ("bertkit.interop.load", "tokenizers.Tokenizer"),
    ("bertkit.train.loop", "datasets"),
    ("bertkit.train.loop", "sklearn.metrics"),
    ("bertkit.stages.evaluate", "evaluate.Metric"),
]


@pytest.mark.parametrize(("module", "name"), FORBIDDEN)
def test_import_rules_can_fail(module: str, name: str) -> None:
    assert len(faults({module: {name}})) == 1


def test_the_house_stays_as_plain_as_it_is() -> None:
    """The figures of `python tests/house.py`, with the most that each may be."""
    table = numbers(ROOT)

    def first(what: str) -> float:
        return float(str(table[what]).split()[0])

    most = {
        "entries of bertkit/": 26, "floors": 8, "largest folder": 16, "longest file": 350, "longest function": 60,
        "most parameters": 8, "most imports of a stage": 12, "branches per 1,000": 292,
    }  # fmt: skip
    assert {what: first(what) for what in most if first(what) > most[what]} == {}
    assert (table["circles"], table["circles of files"]) == (0, 0)


def test_a_circle_of_files_is_found() -> None:
    graph = file_imports(ROOT)
    assert len(graph) > 180
    (circle,) = circles({**graph, "bertkit.base.errors": {"bertkit.cli"}})
    assert {"bertkit.base.errors", "bertkit.cli"} <= set(circle)


def test_circles_and_long_functions_are_found(tmp_path: object) -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == [["b", "c"]]
    actual = dict((name, count) for name, _, count in functions(ROOT / "tests" / "house.py"))
    assert actual["floors"] == 1
    assert len(actual) > 8


def test_the_way_to_the_softmax_is_short(python: Path) -> None:
    way = walk(ROOT, python)
    # on a CPU with dropout the softmax is in a graph node of its own; `kernels=plain` has 18 calls
    assert len(way["stack"]) <= 19, way["stack"]
    assert len(way["way"]) <= 12, way["way"]
    assert len(way["files"]) <= 23, way["files"]


def test_the_model_imports_only_torch() -> None:
    actual = {
        m: imports(p, False) for m, p in modules(ROOT).items() if m.startswith(("bertkit.model", "bertkit.kernels"))
    }
    assert len(actual) >= 12
    outside = {name.split(".")[0] for names in actual.values() for name in names}
    standard = (
        "__future__ collections contextlib ctypes dataclasses functools importlib inspect itertools math os pathlib"
    )
    assert outside <= {"bertkit", "torch", "typing", "shutil", "tempfile", *standard.split()}


def printed(code: str) -> str:
    return output_of([sys.executable, "-c", code], cwd=ROOT)


@pytest.mark.parametrize("module", [*LIGHT, *CONFIGS])
def test_light_modules_stay_light(module: str) -> None:
    """A misspelt key is refused without waiting for torch."""
    code = f"import sys, {module}; print(*[name for name in {HEAVY} if name in sys.modules])"
    assert printed(code).split() == []


def test_a_finished_run_is_recognised_without_torch() -> None:
    code = "import sys, bertkit.jobs.checks, bertkit.run.finished; print(*{'torch', 'accelerate'} & set(sys.modules))"
    assert printed(code).split() == []


def test_a_prediction_needs_no_accelerate() -> None:
    code = "import sys, bertkit.stages.predict, bertkit.stages.embed; print(*{'accelerate', 'datasets', 'pandas'} & set(sys.modules))"
    assert printed(code).split() == []


def test_every_module_imports_without_importing_transformers_or_datasets() -> None:
    """But for scikit-learn's estimators, which are its subclasses."""
    names = [name for name in modules(ROOT) if name not in ("bertkit.__main__", "bertkit.estimators")]
    code = (
        f"import importlib, sys\nfor name in {names}: importlib.import_module(name)\n"
        "print(sum(name.split('.')[0] == 'bertkit' for name in sys.modules), "
        "*[name for name in ('transformers', 'datasets', 'evaluate', 'sklearn', 'jinja2') if name in sys.modules])"
    )
    assert printed(code).split() == [str(len(names))]
