"""What others wrote reaches a terminal, or a page, as text and no more."""

import ast
import dataclasses
import json
import re
from pathlib import Path

import yaml
from cases import CONTROL, Case, check, each
from conftest import TINY_FINETUNE, Capsys, small_model

from bertkit.base.errors import InputError, in_json, in_markdown, say, shown
from bertkit.cli import run
from bertkit.display.report import glue_table
from bertkit.interop.exports.card import CardFacts, model_card

PACKAGE = Path(__file__).resolve().parents[2] / "bertkit"
EVIL = "\x1b[31m\x1b]0;x\x07\r\n\u202e\x9b\u2028"
MARKS = r"\x1b[31m\x1b]0;x\x07\r\n\u202e\x9b\u2028"
HTML = "<script>alert(1)</script><img src=x>"

QUICK = [
    Case("a command", [f"pre{EVIL}train"], r"unknown command 'pre\\x1b\[31m"),
    Case("a key", ["pretrain", f"ke{EVIL}y=3"], r"ke\\x1b\[31m"),
    Case("an option", ["pretrain", f"--opt{EVIL}"], r"unknown option --opt\\x1b\[31m"),
    Case("a configuration folder", ["pretrain", "--config-dir", f"d{EVIL}"], r"--config-dir d\\x1b\[31m"),
    Case("a file of settings", ["pretrain", "--config", f"f{EVIL}"], r"--config f\\x1b\[31m"),
    Case("a model", ["predict", f"model_dir='m{EVIL}'", "input=-", "output=-"], r"model_dir=m\\x1b\[31m"),
]
REST = [
    Case("help of a command", ["help", EVIL], r"unknown command '\\x1b"),
    Case("an option of a group", ["pretrain", f"model='{EVIL}'"], r"model=\\x1b"),
    Case("text", ["prepare", f"corpus.path='x{EVIL}'", "output_dir=o"], r"corpus\.path=x\\x1b\[31m"),
    Case("data", ["pretrain", f"data_dir='x{EVIL}'", "output_dir=o"], r"x\\x1b\[31m"),
    Case("an input", ["predict", "model_dir={shared}/fine", f"input='x{EVIL}'", "output=-"], r"input=x\\x1b\[31m"),
    Case("a task's file", ["finetune", *TINY_FINETUNE, "model_dir={shared}/pre", f"task.files.train='x{EVIL}'",
        "output_dir=o", "data_dir={shared}/task"], r"x\\x1b\[31m"),
    Case("a name that is not UTF-8", ["prepare", "corpus.path='x\udcff'", "output_dir=o"], r"x\\xff"),
    Case("a folder that is not UTF-8", ["pretrain", "data_dir='x\udcff'", "output_dir=o"], r"x\\xff"),
    Case("a file in a folder that is not UTF-8", ["prepare", "corpus.path={here}/in", "output_dir=o", "tokenizer.vocab_size=131"],
        r"prepared dataset", code=0, files={"in/x\udcff.txt": "kan lon ten.\n" * 40}, kept=("o",)),
    Case("a column", ["finetune", *TINY_FINETUNE, "model_dir={shared}/pre", "data_dir={here}", "output_dir=o"],
        r"x\\x1b\[31m", files={"train.jsonl": json.dumps({f"x{EVIL}": 1}), "dev.jsonl": "{}"}, kept=()),
    Case("a label", ["evaluate", "model_dir={shared}/fine", "data_dir={here}"], r"\\x1b\[31m",
        files={"dev.jsonl": json.dumps({"text": "a", "label": EVIL})}),
    Case("a tag", ["finetune", "task=tagging", "model_dir={shared}/pre", "data_dir={here}", "output_dir=o"], r"\\x1b",
        files={"train.conll": "kan O\nlon B-x\n\n", "dev.conll": "kan O\x1b[31m\n\n"}),
    Case("an id that is there twice", ["evaluate", "model_dir={shared}/fine", "data_dir={here}"], r"'i\\x1b\[31m",
        files={"dev.jsonl": 2 * (json.dumps({"id": f"i{EVIL}", "text": "a", "label": "a"}) + "\n")}),
    Case("JSON", ["prepare", "corpus.path=x.jsonl", "output_dir=o"], r"\\x1b",
        files={"x.jsonl": json.dumps({f"x{EVIL}": 1})}),
]  # fmt: skip


@each(QUICK, REST)
def test_one_line_without_control_characters(case: Case, python: Path, tmp_path: Path, tiny_runs: Path) -> None:
    check(case, python, tmp_path, tiny_runs)


def test_control_characters_are_shown_as_escapes(capsys: Capsys) -> None:
    assert shown(EVIL) == MARKS
    assert shown("na\u00efve \u4e2d\u6587 \u05d0") == "na\u00efve \u4e2d\u6587 \u05d0"
    assert shown("x\udcff\ud800") == r"x\xff\ud800"
    assert shown(MARKS) == MARKS  # a message within a message
    assert json.loads(in_json(json.dumps([EVIL], ensure_ascii=False))) == [EVIL]
    assert not CONTROL.search(in_json(json.dumps([EVIL], ensure_ascii=False)))
    say(EVIL, "second")
    assert capsys.readouterr().out == f"{MARKS}\nsecond\n"
    assert str(InputError(f"a{EVIL}", "b")) == f"a{MARKS}\nb"


def test_nothing_prints_but_errors_say_and_results() -> None:
    """Only `errors.say`, and a command that writes its result, may use `print` and the streams."""
    printing = {"stages/predict.py", "stages/embed.py", "data/batches/instances.py"}
    collected, files = [], sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 100
    for path in files:
        name = str(path.relative_to(PACKAGE))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            if called == "print" and name != "base/errors.py":
                collected.append(f"{name}:{node.lineno}")
            if called in ("sys.stdout.write", "sys.stderr.write", "sys.stdout.writelines") and name not in printing:
                collected.append(f"{name}:{node.lineno}")
    assert collected == []


def test_predictions_on_a_terminal(tiny_runs: Path, tmp_path: Path, capsys: Capsys) -> None:
    """A label of the model and an id of the input go out as JSON that a terminal shows, and that reads back."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"id": EVIL, "text": "kan"}) + "\n")
    assert run(["predict", f"model_dir={tiny_runs / 'fine'}", f"input={rows}", "output=-"]) == 0
    out, err = capsys.readouterr()
    assert not CONTROL.search(out + err)
    assert json.loads(out)["id"] == EVIL


def test_model_card_escapes_hostile_settings() -> None:
    """Read back, the card has one title, its own code and its own rows: no tag, link or line of what was put in."""
    evil = f"{HTML}{EVIL}| x |\n# title\n[a](javascript:b) `c`"
    facts = CardFacts(
        evil, settings={evil: evil, "optimizer": {"name": evil}}, results={evil: evil, "accuracy": 0.5}, dataset=(evil, evil),
        metrics=("accuracy",), measured_on=evil, license=evil, language=evil, base_model=evil,
    )  # fmt: skip
    card = model_card(small_model(heads=["sequence"], labels=("a", "b")), facts)
    assert not CONTROL.search(card)
    head, _, body = card.removeprefix("---\n").partition("\n---\n")
    for text in (head, body.replace("```", "")):
        assert "<" not in text
        assert "](" not in text
    actual = yaml.safe_load(head)
    assert (actual["license"], actual["base_model"], actual["datasets"]) == (evil, evil, [evil])
    lines = body.strip().split("\n")
    assert [line for line in lines if line.startswith("#")][1:] == ["## Settings", "## Results"]
    rows = [line for line in lines if line.startswith("|")]
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 3 for row in rows)
    assert len(rows) == 2 * 2 + 4
    assert dataclasses.asdict(facts)["title"] == evil


def test_glue_summary_escapes_hostile_names() -> None:
    run_of = {"seed": 1, "fault": f"{HTML}{EVIL}"}
    task = {"metrics": {}, "score": {"mean": None, "deviation": None}, "num_seeds": 0, "runs": [run_of]}
    summary = {
        "model_dir": f"{HTML}{EVIL}[a](b)",
        "tasks": {"cola": task},
        "average": {"score": None, "tasks": [], "left_out": []},
        "missing": [],
    }
    text = glue_table(summary, [], "submission.zip")
    assert not CONTROL.search(text)
    assert "<" not in text
    assert "](" not in text
    assert r"\x1b" in text


def test_templates_escape_all_but_drawings() -> None:
    """Every value is escaped but the parts of charts, which escape their own texts, and our own styles and scripts."""
    actual = {path.name: path.read_text(encoding="utf-8") for path in (PACKAGE / "display" / "pages").glob("*.html")}
    assert len(actual) > 5
    assert {name: re.findall(r"[\w.|]+\|\s*safe", text) for name, text in actual.items() if "safe" in text} == {
        "parts.html": ["each.parts|join|safe"]
    }
    assert not any("autoescape" in text for text in actual.values())


def test_markdown_of_plain_words() -> None:
    assert in_markdown("BERT for mrpc, 0.5 [1, 2] a_b") == "BERT for mrpc, 0.5 [1, 2] a_b"
