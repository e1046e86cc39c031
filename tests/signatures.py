"""Writes `bertkit/__init__.pyi`, from which editors take the functions, and their docstrings: `python tests/signatures.py`.

The parameters, their types, defaults and comments are those of the settings' dataclasses and of `conf/`.
"""

import dataclasses
import inspect
import re
import sys
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import yaml

import bertkit
from bertkit import COMMANDS, SLOTS
from bertkit.base import plugins
from bertkit.base.intervals import Interval
from bertkit.base.typed_settings import conf_dir, option_names
from bertkit.inference.predictor import load_predictor
from bertkit.settings.reading.names import command_of

STUB = Path(__file__).resolve().parents[1] / "bertkit" / "__init__.pyi"
DOCSTRINGS = STUB.parent / "settings" / "docstrings"
HEAD = '''"""The names of `import bertkit`, for editors and type checkers; written by tests/signatures.py."""

from collections.abc import Callable, Iterable, Sequence
from os import PathLike
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from bertkit.functions import Run as Run
from bertkit.estimators import BertClassifier as BertClassifier
from bertkit.estimators import BertRegressor as BertRegressor
from bertkit.estimators import BertTagger as BertTagger
from bertkit.interop.hugging_face.directory import export_model as export_model
from bertkit.interop.load import load_model as load_model
from bertkit.interop.load import load_tokenizer as load_tokenizer
from bertkit.interop.parity.certificate import check_certificate as check_certificate
from bertkit.inference.embedding import load_embedder as load_embedder
from bertkit.inference.predictor import LoadedPredictor
from bertkit.training.finetuning import Finetuning as Finetuning
from bertkit.training.pretraining import Pretraining as Pretraining
from bertkit.training.fit import fit as fit
from bertkit.training.data_and_model import new_model as new_model
from bertkit.training.data_and_model import open_dataset as open_dataset
from bertkit.base.batch import Batch as Batch
from bertkit.base.batch import Target as Target
from bertkit.objectives.losses import head_losses as head_losses
from bertkit.objectives.losses import outputs as outputs
from bertkit.objectives.objective import MaskedLM as MaskedLM
from bertkit.objectives.objective import Moment as Moment
from bertkit.objectives.objective import Objective as Objective
from bertkit.train.losses import LossTerm as LossTerm
from bertkit.train.losses import cross_entropy as cross_entropy

__version__: str
COMMANDS: tuple[str, ...]

_Path: TypeAlias = str | PathLike[str]
_Rows: TypeAlias = Iterable[object]
_Made = TypeVar("_Made", bound=Callable[..., object])
'''
# settings that are files or folders; a run can be given for them
PATHS = {
    "output_dir", "output", "data_dir", "model_dir", "input", "index", "glossary", "translate", "runs", "dump", "merge", "path", "check",
}  # fmt: skip
ROWS_TEXT = "rows: mappings, a data frame or a `datasets.Dataset`"
OWN_TEXT = {
    "train": f"the {ROWS_TEXT}; or a file; None to read data_dir",
    "dev": f"for the evaluation, {ROWS_TEXT}; or a file; None to read data_dir, or with dev_share",
    "data": f"labelled {ROWS_TEXT}; or a file; None to read data_dir",
    "input": "a file; or texts, pairs or rows in a list, a column, a data frame, a `datasets.Dataset` or a generator",
    "corpus": "one of files, hub, python_docs; or a mapping of settings, with the option as `name`; or texts, each a document, in a "
    "list, a column, a data frame, a `datasets.Dataset` or a generator",
    "output_dir": "where the run is kept; None: below runs/, under a name that is made from the settings",
    "text_column": "the column of the text: a name, or a number from 0",
    "text_pair_column": "the column of the second text",
    "label_column": "the column of the labels",
}
HIDDEN = {"task_changes", "explicit_keys"}  # not set by users
PYTHON = {"null": "None", "true": "True", "false": "False"}
COLUMNS = ("text_column", "text_pair_column", "label_column")
EXAMPLES = {
    "prepare": """
        >>> data = bertkit.prepare(corpus={"path": "books.txt"}, tokenizer={"vocab_size": 300}, output_dir="books")""",
    "pretrain": """
        >>> run = bertkit.pretrain(data_dir=data, model="tiny", steps=4, schedule={"warmup_steps": 1}, output_dir="tiny")
        >>> run.scores["mlm_loss"] > 0, run.metrics[0]["step"], run.report.name
        (True, 1, 'report.html')""",
    "finetune": """
        >>> rows = [{"review": "a good day", "label": "good"}, {"review": "a bad day", "label": "bad"}]
        >>> task = {"task": "sequence", "text_column": "review", "model_dir": run}
        >>> stars = bertkit.finetune(rows * 8, dev=rows, num_epochs=1, output_dir="stars", **task)
        >>> 0 <= stars.scores["accuracy"] <= 1
        True""",
    "glue": """
        >>> bertkit.glue(model_dir=run, data_dir="glue", tasks=["rte"], seeds=[0], output_dir="glue-runs")  # doctest: +SKIP""",
    "predict": """
        >>> predictions = bertkit.predict(stars, ["a good day", "a bad day"])
        >>> sorted(predictions[0]["probabilities"])
        ['bad', 'good']""",
    "embed": """
        >>> bertkit.embed(model_dir=run, input=["a good day", "a bad day"], pooling="mean").shape
        (2, 128)""",
    "evaluate": """
        >>> bertkit.evaluate(stars, rows).scores["num_examples"]
        2""",
    "compare": """
        >>> bertkit.compare(run, stars, output="compare.html").report.name
        'compare.html'""",
    "view": """
        >>> type(bertkit.view(stars, "a good day", steps=0)).__name__
        'Page'""",
    "serve": """
        >>> bertkit.serve(model_dir=stars, port=8000)  # doctest: +SKIP""",
    "index": """
        >>> library = bertkit.index(corpus={"path": "books.txt"}, output="library.db")""",
    "search": """
        >>> (found,) = bertkit.search(index=library, question="kan lon")
        >>> found["question"]
        'kan lon'""",
    "export": """
        >>> bertkit.export(stars, "stars-export", head="task").model_dir.name
        'stars-export'""",
    "verify": """
        >>> bertkit.verify(model_dir=stars, sequences=1).scores["within_tolerance"]
        True""",
}
RETURNS = {
    "prepare": "A run whose `directory` holds the dataset.",
    "pretrain": "A run with a `model_dir` that `transformers` loads too.",
    "finetune": "A run with the model that has the best score in the task's metric.",
    "glue": "A run whose `scores` are the summary of all tasks.",
    "predict": "A mapping for each input; with `output`, a run that names the file.",
    "embed": "The vectors, float32 (n, D); with `output`, a run that names the file.",
    "evaluate": "A run that has only `scores`.",
    "compare": "A run: its `report` is the page, and its `scores` hold the scores of each run by name.",
    "view": "The page, which a notebook shows; with `output`, a run that names the file.",
    "serve": "Only after the server is stopped.",
    "index": "A run whose `output` is the library.",
    "search": "A mapping with the passages for each question; with `output`, a run that names the file.",
    "export": "A run whose `model_dir` is the exported directory.",
    "verify": "A run whose `scores` are the certificate.",
}
RESULTS = {
    "view": "str",
    "predict": "list[dict[str, Any]]",
    "search": "list[dict[str, Any]]",
    "embed": "NDArray[np.float32]",
}


class Stub:
    """The text of the stub: the functions, and the classes of the groups that they take."""

    def __init__(self) -> None:
        self.groups = option_names([conf_dir()])
        self.classes: dict[str, str] = {}
        self.docstrings: dict[str, str] = {}  # by command, as Python gives them

    def type_of(self, annotation: Any, key: str) -> str:
        """How a stub writes the type of a setting."""
        parts = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
        schemas = [part for part in parts if dataclasses.is_dataclass(part)]
        plain = [self._plain(part, key) for part in parts if part not in schemas]
        return " | ".join(dict.fromkeys([*self._class_of(schemas, key), *plain]))

    def _plain(self, annotation: Any, key: str) -> str:
        kind, inner = get_origin(annotation), get_args(annotation)
        if kind is Annotated:  # an interval of numbers, or a name, perhaps of a plug-in
            return str(inner[0].__name__) if isinstance(inner[1], Interval) else "str"
        if annotation in (Any, NoneType):
            return {Any: "Any", NoneType: "None"}[annotation]
        if kind is Literal:
            return f"Literal[{', '.join(map(repr, inner))}]"
        if kind is tuple:
            return f"Sequence[{self.type_of(inner[0], key)}]"
        if kind is dict:
            return "dict[str, Any]"
        return "_Path" if annotation is str and key in PATHS else str(annotation.__name__)

    def _class_of(self, schemas: list[Any], group: str) -> list[str]:
        """The typed mapping for a group, one for all the dataclasses that it may be."""
        if not schemas:
            return []
        name = f"_{schemas[0].__name__}"
        if name not in self.classes:
            fields: dict[str, list[str]] = {"name": ["str"]} if group in self.groups else {}
            for key, hint in ((key, hint) for each in schemas for key, hint in hints_of(each).items()):
                fields.setdefault(key, []).append(self.type_of(hint, key))
            lines = [f"    {key}: {' | '.join(dict.fromkeys(kinds))}" for key, kinds in fields.items()]
            self.classes[name] = "\n".join([f"class {name}(TypedDict, total=False):", *lines])
        return [name]

    def parameters(self, command: str) -> dict[str, tuple[str, str, str]]:
        """The parameters of a command: the type, default and comment of each; those without a default come first."""
        lines = (conf_dir() / f"{command}.yaml").read_text(encoding="utf-8")
        content = yaml.safe_load(lines)
        comments = dict(re.findall(r"^(\w+):.*?  # (.*)$", lines, re.MULTILINE))
        chosen = {
            name: option
            for entry in content.pop("defaults")
            if isinstance(entry, dict)
            for name, option in entry.items()
        }
        hints = {"experiment": str | None, **hints_of(command_of(command).settings)}
        results = {}
        for key, value in {**content, **chosen}.items():
            kind, comment = self.type_of(hints[key], key), comments.get(key, "")
            if key in self.groups and key in chosen:
                alias = f"_{key.capitalize()}Option"
                kind = f"{alias} | None" if key == "experiment" else f"{alias} | {kind}"
                if key in plugins.SLOTS and key != "task":  # a kind of task of the user's own has another setting
                    kind = kind.replace(alias, "str")
                else:
                    self.classes[alias] = f"{alias}: TypeAlias = Literal[{', '.join(map(repr, self.groups[key]))}]"
                named = f"one of {', '.join(self.groups[key])}; or "
                comment = (
                    comment
                    or f"{named if len(self.groups[key]) > 1 else ''}a mapping of settings, with the option as `name`"
                )
            default = "" if value == "???" else repr(value)
            is_computed = isinstance(value, dict) or "${" in str(value)
            comment = re.sub(r"\b(null|true|false)\b", lambda match: PYTHON[match[1]], comment)
            results[key] = (kind, "..." if is_computed else default, comment)
        for name in command_of(command).rows:
            kind, default, _ = results.get(name, ("_Path | None", "None", ""))
            results[name] = (f"_Rows | {kind}", default, OWN_TEXT[name])
        if command_of(command).makes_run:
            results["output_dir"] = ("_Path | None", "None", OWN_TEXT["output_dir"])
        if "task" in results:
            results |= {name: ("str | int | None", "None", OWN_TEXT[name]) for name in COLUMNS}
        if command == "glue":
            results |= {
                name: own
                for name, own in self.parameters("finetune").items()
                if name not in (*results, "task", *COLUMNS, "train", "dev", "seed")
            }
        if command_of(command).returns == "values":
            results["output"] = ("None", "None", results["output"][2])
        if command_of(command).returns == "page":
            results["output"] = (
                "None",
                "None",
                f"{results['output'][2]}; None: the page is returned".removeprefix("; "),
            )
        order = sorted(results, key=lambda name: (results[name][1] != "", name not in ("train", "dev")))
        return {name: results[name] for name in order}

    def function(self, command: str) -> str:
        """The function of a command."""
        parameters = self.parameters(command)
        first, *_ = re.split(r"(?<=[.:])\s", " ".join(head_of(command)), maxsplit=1)
        what = [f"        {name}: {text}" for name, (*_, text) in parameters.items() if text]
        doc = [
            f'    """{first.rstrip(".:")}.',
            "",
            EXAMPLES[command].strip("\n").replace("        ", "    "),
            "",
            "    Args:",
            *what,
        ]
        doc += ["", "    Returns:", f"        {RETURNS[command]}", '    """']
        self.docstrings[command] = inspect.cleandoc("\n".join(doc).strip().strip('"')) + "\n"
        text = self.definition(command, parameters, RESULTS.get(command, "None" if command == "serve" else "Run"), doc)
        if command_of(command).returns in ("values", "page"):
            kind = self.type_of(str, "output")
            others = parameters | {"output": (kind, "", "")}
            text = f"@overload\n{text}\n@overload\n{self.definition(command, others, 'Run', ['    ...'])}"
        return text

    def definition(self, name: str, parameters: dict[str, tuple[str, str, str]], result: str, body: list[str]) -> str:
        """A function with keyword parameters, of which some need no names."""
        named = {
            key: f"    {key}: {kind}{f' = {default}' if default else ''},"
            for key, (kind, default, _) in parameters.items()
        }
        first = [named.pop(key) for key in (command_of(name).positions if name in COMMANDS else ())]
        mark, first = ("    *runs: _Path | Sequence[_Path],", []) if name == "compare" else ("    *,", first)
        return "\n".join([f"def {name}(", *first, mark, *named.values(), f") -> {result}:", *body])

    def text(self) -> str:
        """The whole stub."""
        functions = [self.function(command) for command in COMMANDS]
        left_out = {"input", "output", "overwrite", "text", "text_pair", "carry_input", "format", "model_dir"}
        own = {name: value for name, value in self.parameters("predict").items() if name not in left_out}
        doc = [f'    """{(load_predictor.__doc__ or "").strip()}\n    """']
        loader = self.definition("load_predictor", own, "LoadedPredictor", doc)
        functions.append(loader.replace("(\n", "(\n    model_dir: _Path,\n", 1))
        for slot in SLOTS:
            doc = f'"""{getattr(bertkit, slot).__doc__}"""'
            functions += [f"@overload\ndef {slot}(name: str = ...) -> Callable[[_Made], _Made]: ..."]
            functions += [f"@overload\ndef {slot}(made: _Made) -> _Made:\n    {doc}"]
        return "\n\n".join([HEAD, *self.classes.values(), *functions]) + "\n"


def hints_of(schema: Any) -> dict[str, Any]:
    """The types of the settings in a dataclass that users set."""
    hints = get_type_hints(schema, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(schema) if field.name not in HIDDEN}


def head_of(command: str) -> list[str]:
    """The first sentences of a command's configuration file."""
    lines = (conf_dir() / f"{command}.yaml").read_text(encoding="utf-8").splitlines()
    return [line[2:] for line in lines[: lines.index("#")]]


if __name__ == "__main__":
    stub = Stub()
    STUB.write_text(stub.text(), encoding="utf-8")
    for command, docstring in stub.docstrings.items():
        (DOCSTRINGS / f"{command}.txt").write_text(docstring, encoding="utf-8")
    print(f"{STUB}: {len(STUB.read_text().splitlines())} lines", file=sys.stderr)
