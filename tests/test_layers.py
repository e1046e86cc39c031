"""Imports point down; each third-party library has its home; light modules stay light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from bertkit.cli import COMMANDS

PACKAGE = Path(__file__).resolve().parents[1] / "bertkit"
STAGES = ("prepare", "pretrain", "finetune", "glue", "predict", "evaluate", "export", "verify", "bench")
BASE = ("config", "files", "errors", "batch", "progress", "heartbeat")  # imported from everywhere
# first name of a module -> the rooms that it may import besides itself; "" is bertkit/__init__.py
BELOW = ("data", "model", "train", *BASE, "")
ABOVE = ("interop", "view", "tasks")
HELPERS = (
    "run_dir",
    "resume_rules",
    "task_model",
    "training_run",
    "training_stage",
    "answering",
    "objective",
    "phases",
    "launch",
    "settings",
    "contestants",
    "memory_plan",
    "memory_here",
    "bench_jobs",
    "bench_compare",
    "bench_memory",
    "bench_scaling",
)
ALLOWED = {
    "": ("interop",),  # on first use
    "__main__": ("cli",),
    "cli": ("config", "settings", "errors", "launch", "heartbeat", "progress", "files", "", *STAGES),
    **{stage: (*STAGES, *ABOVE, *HELPERS, *BELOW) for stage in STAGES},
    "objective": ("batch", "model", "train", "heartbeat"),
    "phases": ("data", "train", "settings", "evaluate"),
    "contestants": (*ABOVE, *BELOW, "answering", "memory_here", "objective", "task_model"),
    "answering": ("data", "objective", "tasks", "train"),
    "memory_plan": ("model",),  # its config.py only
    "memory_here": ("memory_plan",),
    "bench_jobs": (*ABOVE, *BELOW, "contestants", "settings"),
    "bench_compare": (*ABOVE, *BELOW, "contestants", "settings", "bench_jobs"),
    "bench_scaling": (*ABOVE, *BELOW, "contestants", "settings", "bench_jobs", "bench_compare"),
    "bench_memory": (*ABOVE, *BELOW, "contestants", "settings", "bench_jobs", "memory_plan", "memory_here"),
    "task_model": ("config", "data", "interop", "model", "tasks", "run_dir", "errors"),
    "training_run": ("data", "files", "interop", "launch", "model", "train", "errors", "heartbeat"),
    "training_stage": ("training_run", "launch", "run_dir", "resume_rules", "settings", "train", "view", *BASE),
    "hosts": ("config", "errors"),
    "run_dir": ("errors", "files", "launch", "resume_rules", "heartbeat", ""),
    "resume_rules": ("config", "errors"),
    "launch": ("errors", "heartbeat", "hosts", "settings"),
    "settings": ("config", "data", "model", "tasks", "train", "errors"),  # their config.py only
    "interop": BELOW,
    "view": BELOW,
    "tasks": BELOW,
    "data": BASE,
    "model": BASE,
    "train": BASE,
    "config": ("errors",),
    "files": ("errors", "heartbeat"),
    "errors": (),
    "batch": (),
    "progress": (),
    "heartbeat": (),
}
HOMES = {
    "hydra": ("cli",),
    "omegaconf": ("cli",),
    "accelerate": ("train", "pretrain", "evaluate"),  # the two stages name its type in annotations
    "transformers": ("interop",),
    "huggingface_hub": ("interop",),
    "google_crc32c": ("interop",),
    "tokenizers": ("data",),
    "datasets": ("data", "tasks", "interop"),
    "evaluate": ("tasks",),
    "sklearn": ("tasks",),
    "scipy": ("tasks",),
    "seqeval": ("tasks",),
}
TORCH_FREE = ("bertkit.data.config", "bertkit.model.config", "bertkit.tasks.config", "bertkit.train.config")
HEAVY = ("torch", "transformers", "datasets", "tokenizers", "hydra", "omegaconf", "accelerate", "numpy", "yaml")


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(part for part in parts if part != "__init__")] = path
    return found


def imports(path: Path) -> set[str]:
    """Every dotted name that a file imports, at its top or inside a function."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def room(dotted: str) -> str:
    """The first name below bertkit: `bertkit.data.corpus` -> data; "" for the package's own names."""
    parts = dotted.split(".")
    return parts[1] if len(parts) > 1 and (PACKAGE / parts[1]).exists() | (PACKAGE / f"{parts[1]}.py").exists() else ""


def faults(found: dict[str, set[str]]) -> list[str]:
    """Every import that the rules forbid, given the imports of each module."""
    wrong = []
    for module, names in found.items():
        here = room(module)
        assert here in ALLOWED, f"{module}: no rule says what it may import"
        for name in names:
            top = name.split(".")[0]
            if top == "bertkit":
                if room(name) != here and room(name) not in ALLOWED[here]:
                    wrong.append(f"{module} imports {name}")
                if module == "bertkit.settings.schemas" and room(name) in ("data", "model", "tasks", "train"):
                    assert name.split(".")[2] == "config", f"settings imports {name}"
            elif top in HOMES and here not in HOMES[top]:
                wrong.append(f"{module} imports {top}")
    return wrong


def test_imports_point_down() -> None:
    found = {module: imports(path) for module, path in modules().items()}
    assert len(found) >= 45
    assert set(STAGES) == set(COMMANDS)
    assert sum(len(names) for names in found.values()) > 300
    assert faults(found) == []


FORBIDDEN = [
    ("bertkit.data.collate", "bertkit.model.layout.Layout"),
    ("bertkit.data.collate", "bertkit.train.losses.LossTerm"),
    ("bertkit.model.heads", "bertkit.data.tokenizer.Tokenizer"),
    ("bertkit.model.heads", "bertkit.train.losses.LossTerm"),
    ("bertkit.train.loop", "bertkit.model.layout.Layout"),
    ("bertkit.train.loop", "bertkit.data.sampling"),
    ("bertkit.train.loop", "bertkit.stages.pretrain"),
    ("bertkit.interop.load", "bertkit.stages.export.run"),
    ("bertkit.view.report", "bertkit.cli.run"),
    ("bertkit.stages.pretrain", "bertkit.cli.run"),
    ("bertkit.settings.schemas", "hydra.compose"),
    ("bertkit.tasks.files.readers", "bertkit.interop.load"),
    ("bertkit.tasks.files.readers", "bertkit.stages.evaluate.run"),
    ("bertkit.stages.pretrain", "omegaconf"),
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
def test_the_rules_can_fail(module: str, name: str) -> None:
    assert len(faults({module: {name}})) == 1


def test_the_model_imports_only_torch() -> None:
    found = {m: imports(p) for m, p in modules().items() if m.startswith("bertkit.model")}
    assert len(found) >= 7
    outside = {name.split(".")[0] for names in found.values() for name in names}
    standard = {
        "__future__",
        "collections",
        "contextlib",
        "ctypes",  # of the allocator's settings, in kernels.py
        "dataclasses",
        "functools",
        "importlib",
        "math",
        "os",
        "pathlib",
        "shutil",
    }
    assert outside <= {"bertkit", "torch", "typing", *standard}


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=PACKAGE.parent)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "module",
    [
        "bertkit",
        "bertkit.cli",
        "bertkit.settings.schemas",
        "bertkit.launch.launcher",
        "bertkit.run.memory_plan",
        *TORCH_FREE,
    ],
)
def test_light_modules_stay_light(module: str) -> None:
    """A misspelt key is refused without waiting for torch."""
    code = f"import sys, {module}; print(*[name for name in {HEAVY} if name in sys.modules])"
    assert python(code).split() == []


def test_every_module_imports_without_importing_transformers_or_datasets() -> None:
    classes_of_evaluate = (
        "bertkit.tasks.official"  # imports evaluate, and with it datasets; itself imported on first use
    )
    names = [name for name in modules() if name not in ("bertkit.__main__", classes_of_evaluate)]
    code = (
        f"import importlib, sys\nfor name in {names}: importlib.import_module(name)\n"
        "print(sum(name.split('.')[0] == 'bertkit' for name in sys.modules), "
        "*[name for name in ('transformers', 'datasets', 'hydra') if name in sys.modules])"
    )
    assert python(code).split() == [str(len(names))]
