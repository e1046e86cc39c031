"""How easy the code is to walk through, in numbers: `python tests/house.py [ROOT]`, the last two by a real training step.

files and lines     of the package; lines of Python under tests/ and recipes/
entries             of the folder `bertkit/`
floors, circles     of the graph of rooms: a room is a folder of the package, or a file beside them
longest, most       files and functions by lines, functions by parameters (self and cls not counted)
calls               bertkit's functions on the stack when `bertkit pretrain` takes its first softmax
files of a step     files of the package that run between the call of `optimizer_step` and its return, or call it
"""

import ast
import functools
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROBE = """
import json, sys, traceback
from pathlib import Path

import torch
import torch.nn.functional as F

from bertkit import cli
from bertkit.train import loop

package, seen, stacks, way = str(Path(cli.__file__).parent), set(), [], set()

def inside(frame):
    return [f.f_code for f, _ in traceback.walk_stack(frame) if f.f_code.co_filename.startswith(package)]

def spied(real):
    def softmax(*args, **named):
        way.update(code.co_filename for code in inside(sys._getframe(1)))
        if not stacks:
            stacks.append([f"{Path(c.co_filename).relative_to(package)}:{c.co_name}" for c in inside(sys._getframe(1))][::-1])
        return real(*args, **named)
    return softmax

def note(frame, event, _):
    if event == "call" and frame.f_code.co_filename.startswith(package):
        seen.add(frame.f_code.co_filename)
        if frame.f_code.co_filename.endswith(("losses.py", "optimizer.py")):
            way.update(code.co_filename for code in inside(frame))

real_step, real_init = loop.optimizer_step, torch.softmax

def step(*args, **named):
    seen.update(code.co_filename for code in inside(sys._getframe(1)))
    seen.add(loop.__file__)
    torch.softmax, F.scaled_dot_product_attention = spied(torch.softmax), spied(F.scaled_dot_product_attention)
    sys.setprofile(note)
    try:
        return real_step(*args, **named)
    finally:
        sys.setprofile(None)

loop.optimizer_step = step
sys.argv = ["bertkit", *sys.argv[1:]]
try:
    cli.main()
except SystemExit as end:
    assert end.code == 0, end.code
def short(names):
    return sorted(str(Path(name).relative_to(package)) for name in names)

print(json.dumps({"stack": stacks[0], "way": short(way), "files": short(seen)}))
"""


@functools.cache
def modules(root: Path) -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    found = {}
    for path in sorted((root / "bertkit").rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(part for part in parts if part != "__init__")] = path
    return found


@functools.cache
def imports(path: Path) -> set[str]:
    """Every dotted name that a file imports, at its top or inside a function; not those for type checkers alone."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = [ast.Pass()]
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def module_of(dotted: str, known: Mapping[str, Path]) -> str | None:
    """Give the module that an imported name is, or stands in; None for other packages' names."""
    return next((name for name in (dotted, dotted.rpartition(".")[0]) if name in known), None)


def room(module: str) -> str:
    """The first name below bertkit: `bertkit.data.corpus.documents` -> data; "" for names of the package itself."""
    return [*module.split("."), ""][1]


def file_imports(root: Path) -> dict[str, set[str]]:
    """The files of the package that each file imports."""
    known = modules(root)
    return {
        name: {target for each in imports(path) if (target := module_of(each, known)) not in (None, name)}
        for name, path in known.items()
    }


def arrows(root: Path) -> dict[str, set[str]]:
    """The rooms that each room imports; the command line and the package itself, imported lazily, count as rooms."""
    graph: dict[str, set[str]] = {}
    for name, targets in file_imports(root).items():
        graph.setdefault(room(name), set()).update({room(target) for target in targets} - {room(name), ""})
    return graph


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of nodes that reach one another."""

    def reach(start: str) -> set[str]:
        seen: set[str] = set()
        queue = [start]
        while queue:
            for target in graph[queue.pop()] - seen:
                seen.add(target)
                queue.append(target)
        return seen

    reached = {name: reach(name) for name in graph}
    groups = {
        tuple(sorted(other for other in graph if other in reached[name] and name in reached[other])) for name in graph
    }
    return sorted(list(group) for group in groups if group)


def floors(graph: Mapping[str, set[str]]) -> int:
    """The number of rooms on the longest path of imports."""
    depth: dict[str, int] = {}

    def of(name: str, above: tuple[str, ...] = ()) -> int:
        if name not in depth:
            below = [of(target, (*above, name)) for target in graph[name] if target not in above]
            depth[name] = 1 + max(below, default=0)
        return depth[name]

    return max(of(name) for name in graph)


def functions(path: Path) -> Iterator[tuple[str, int, int]]:
    """Name, lines and parameters of every function of a file; its docstring counts among the lines."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            names = [each.arg for each in given if each.arg not in ("self", "cls", "ctx")]
            yield node.name, (node.end_lineno or 0) - node.lineno + 1, len(names)


def walk(root: Path, python: str | Path = sys.executable) -> dict[str, list[str]]:
    """The stack of the first softmax of a real `bertkit pretrain`, and the files that take part in a step."""
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        text.write_text("\n\n".join(f"one {n} two.\nthree {n} four.\nfive {n}." for n in range(40)) + "\n", "utf-8")
        data, run = f"{folder}/data", f"{folder}/run"
        prepare = ["prepare", f"corpus.path={text}", "tokenizer.vocab_size=100", f"output_dir={data}"]
        pretrain = [
            "pretrain", "model=tiny", f"data_dir={data}", f"output_dir={run}", "steps=1", "schedule.warmup_steps=0",
            "batch.sequences=4", "segments.max_seq_length=16", "device=cpu", "log.every_steps=1",
        ]  # fmt: skip
        for arguments, command in ((prepare, ["-m", "bertkit"]), (pretrain, ["-c", PROBE])):
            done = subprocess.run([python, *command, *arguments], cwd=root, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr + done.stdout
        found: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
        return found


def numbers(root: Path) -> dict[str, object]:
    known, graph = modules(root), arrows(root)
    lengths = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in known.items()}
    defined = [(name, *found) for name, path in known.items() for found in functions(path)]
    folders = Counter(str(path.parent.relative_to(root)) for path in known.values() if path.name != "__init__.py")
    entries = [each for each in (root / "bertkit").iterdir() if not each.name.startswith((".", "__pycache__"))]

    def longest(values: Mapping[str, int]) -> str:
        name = max(values, key=lambda each: values[each])
        return f"{values[name]} ({name})"

    def lines_under(folder: str) -> int:
        return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in (root / folder).rglob("*.py"))

    return {
        "entries of bertkit/": len(entries),
        "files": len(known),
        "lines": sum(lengths.values()),
        "lines of tests, recipes": f"{lines_under('tests')}, {lines_under('recipes')}",
        "rooms": len(graph),
        "arrows between rooms": sum(map(len, graph.values())),
        "floors": floors(graph),
        "circles": circles(graph) or 0,
        "circles of files": circles(file_imports(root)) or 0,
        "largest folder": longest(folders),
        "longest file": longest(lengths),
        "longest function": longest({f"{module}.{name}": length for module, name, length, _ in defined}),
        "most parameters": longest({f"{module}.{name}": count for module, name, _, count in defined}),
    }


if __name__ == "__main__":
    root = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT
    table = numbers(root)
    way = walk(root)
    table |= {"calls to the softmax": len(way["stack"])}
    table |= {"files on the way": len(way["way"]), "files of a step": len(way["files"])}
    for what, value in table.items():
        print(f"{what:<24} {value}")
    print("\n  ".join(["calls:", *way["stack"]]))
    print("\n  ".join(["files on the way:", *way["way"]]))
    print("\n  ".join(["files of a step:", *way["files"]]))
