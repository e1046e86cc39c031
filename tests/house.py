"""How easy the code is to walk through, in numbers: `python tests/house.py [ROOT]`, the last ones by a real training step.

files and lines     of the package; lines of Python under tests/ and recipes/
entries             of the folder `bertkit/`
floors, circles     of the graph of rooms: a room is a folder of the package, or a file beside them; circles of files also with
                    the imports under TYPE_CHECKING
longest, most       files and functions by lines, functions by parameters (self and cls not counted); stages by modules of
                    bertkit that they import
statements          without docstrings; for every 1,000 of them: branches (if, for, while, try, except, conditional expressions,
                    and/or, comprehensions), the word Any, isinstance, hasattr and getattr, functions that return a tuple
calls               bertkit's functions on the stack when `bertkit pretrain` takes its first softmax
files of a step     files of the package that run between the call of `optimizer_step` and its return, or call it
with the start      files that run from the first argument to the end of the first step: settings, plan, data and model too
"""

import ast
import functools
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROBE = """
import json, sys, traceback
from pathlib import Path

import torch
import torch.nn.functional as F

from bertkit import cli
from bertkit.train import loop

package, seen, stacks, way, start = str(Path(cli.__file__).parent), set(), [], set(), set()

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

def begin(frame, event, _):
    if event == "call" and frame.f_code.co_filename.startswith(package):
        start.add(frame.f_code.co_filename)

real_step = loop.optimizer_step

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
sys.setprofile(begin)
try:
    cli.main()
except SystemExit as end:
    assert end.code == 0, end.code
def short(names):
    return sorted(str(Path(name).relative_to(package)) for name in names)

print(json.dumps({"stack": stacks[0], "way": short(way), "files": short(seen), "start": short(seen | start)}))
"""


@functools.cache
def modules(root: Path) -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    results = {}
    for path in sorted((root / "bertkit").rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        results[".".join(part for part in parts if part != "__init__")] = path
    return results


@functools.cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """The syntax tree of a file, flat, and without leaves that nothing here counts."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return tuple(node for node in ast.walk(tree) if not isinstance(node, ast.expr_context | ast.operator))


@functools.cache
def imports(path: Path, for_types: bool) -> set[str]:
    """Every dotted name that a file imports, at its top or inside a function; those for type checkers alone only on request."""
    left_out: set[ast.AST] = set()
    for node in nodes_of(path):
        is_for_types = isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        if is_for_types and not for_types:
            left_out.update(node.body)
    names = set()
    for node in nodes_of(path):
        if node in left_out:
            continue
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
    """The first name below bertkit: `bertkit.data.texts.documents` -> data; "" for names of the package itself."""
    return [*module.split("."), ""][1]


def file_imports(root: Path, for_types: bool = False) -> dict[str, set[str]]:
    """The files of the package that each file imports; with `for_types` also those for type checkers alone."""
    known = modules(root)
    return {
        name: {target for each in imports(path, for_types) if (target := module_of(each, known)) not in (None, name)}
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
    for node in nodes_of(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            names = [each.arg for each in arguments if each.arg not in ("self", "cls", "ctx")]
            yield node.name, (node.end_lineno or 0) - node.lineno + 1, len(names)


BRANCHES = (ast.If, ast.For, ast.While, ast.IfExp, ast.BoolOp, ast.Try, ast.ExceptHandler, ast.comprehension)


def counts(paths: Iterable[Path]) -> Counter[str]:
    """The statements of files, and what costs their reader most."""
    number: Counter[str] = Counter()
    for node in (node for path in paths for node in nodes_of(path)):
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        called = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else None
        number["statements"] += isinstance(node, ast.stmt) and not is_docstring
        number["branches"] += isinstance(node, BRANCHES)
        number["the word Any"] += isinstance(node, ast.Name) and node.id == "Any"
        number["isinstance"] += called == "isinstance"
        number["hasattr, getattr"] += called in ("hasattr", "getattr")
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            hints = [
                ast.unparse(each.annotation) for each in (*node.args.args, *node.args.kwonlyargs) if each.annotation
            ]
            number["returning a tuple"] += node.returns is not None and ast.unparse(node.returns).startswith("tuple[")
            number["parameters Any"] += hints.count("Any")
    return number


def same_names(known: Mapping[str, Path]) -> list[str]:
    """The names that public classes of two files have."""
    names = [{node.name for node in nodes_of(path) if isinstance(node, ast.ClassDef)} for path in known.values()]
    number = Counter(name for each in names for name in each if not name.startswith("_"))
    return sorted(name for name, count in number.items() if count > 1)


def walk(root: Path, python: str | Path = sys.executable) -> dict[str, list[str]]:
    """The stack of the first softmax of a real `bertkit pretrain`, and the files that take part in a step."""
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        text.write_text("\n\n".join(f"one {n} two.\nthree {n} four.\nfive {n}." for n in range(40)) + "\n", "utf-8")
        data, run = f"{folder}/data", f"{folder}/run"
        prepare = ["prepare", f"corpus.path={text}", "tokenizer.vocab_size=100", f"output_dir={data}"]
        pretrain = [
            "pretrain", "model=tiny", f"data_dir={data}", f"output_dir={run}", "steps=1", "schedule.warmup_steps=0",
            "model.hidden_dropout_prob=0.1", "model.attention_probs_dropout_prob=0.1", "batch.sequences=4", "segments.max_seq_length=16", "device=cpu", "log.every_steps=1",
        ]  # fmt: skip
        for arguments, command in ((prepare, ["-m", "bertkit"]), (pretrain, ["-c", PROBE])):
            done = subprocess.run([python, *command, *arguments], cwd=root, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr + done.stdout
        results: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
        return results


def numbers(root: Path) -> dict[str, object]:
    known, graph = modules(root), arrows(root)
    lengths = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in known.items()}
    defined = [(name, *result) for name, path in known.items() for result in functions(path)]
    folders = Counter(str(path.parent.relative_to(root)) for path in known.values() if path.name != "__init__.py")
    entries = [each for each in (root / "bertkit").iterdir() if not each.name.startswith((".", "__pycache__"))]

    def longest(values: Mapping[str, int]) -> str:
        name = max(values, key=lambda each: values[each])
        return f"{values[name]} ({name})"

    def lines_under(folder: str) -> int:
        return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in (root / folder).rglob("*.py"))

    number, stages = counts(known.values()), file_imports(root)
    whole = ("statements", "parameters Any")
    shares = {what: round(1000 * number[what] / number["statements"], 1) for what in number if what not in whole}

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
        "with TYPE_CHECKING": circles(file_imports(root, for_types=True)) or 0,
        "largest folder": longest(folders),
        "longest file": longest(lengths),
        "longest function": longest({f"{module}.{name}": length for module, name, length, _ in defined}),
        "most parameters": longest({f"{module}.{name}": count for module, name, _, count in defined}),
        "most imports of a stage": longest({name: len(stages[name]) for name in known if ".stages." in name}),
        "classes of one name": ", ".join(same_names(known)) or 0,
        **{what: number[what] for what in whole},
        **{f"{what} per 1,000": share for what, share in shares.items()},
    }


if __name__ == "__main__":
    root = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT
    table = numbers(root)
    way = walk(root)
    table |= {"calls to the softmax": len(way["stack"])}
    for what, name in (("way", "files on the way"), ("files", "files of a step"), ("start", "with the start")):
        lines = [len((root / "bertkit" / path).read_text(encoding="utf-8").splitlines()) for path in way[what]]
        table |= {name: f"{len(lines)} of {sum(lines):,} lines"}
    for what, value in table.items():
        print(f"{what:<26} {value}")
    print("\n  ".join(["calls:", *way["stack"]]))
    print("\n  ".join(["files on the way:", *way["way"]]))
    print("\n  ".join(["files of a step:", *way["files"]]))
