"""Predictions as a user meets them: a line for each input, from files and pipes, for every head."""

import csv
import itertools
import json
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from conftest import LABELS, Capsys, headed_model, output_of, refused
from task_configs import task_config

import bertkit
from bertkit import export_model, finetune, load_model, load_predictor, load_tokenizer
from bertkit.apps.server.bodies import describe_model
from bertkit.apps.server.models import open_models
from bertkit.base.errors import InputError
from bertkit.base.typed_settings import build
from bertkit.cli import run
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.settings.reading.compose import compose
from bertkit.settings.serve import ServeSettings
from bertkit.tasks.reading import labels
from bertkit.train import micro_batches

SPANS = ["task=spans", "task.max_seq_length=40", "task.spans.max_query_length=11", "task.spans.window_step=13"]
Make = Callable[..., Path]


@pytest.fixture(scope="module")
def make(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Give the directory of a small model with some head."""
    made: dict[str, Path] = {}

    def directory(head: str, **changes: Any) -> Path:
        key = f"{head} {changes}"
        if key not in made:
            model = headed_model(tokenizer, *(() if head == "encoder" else (head,)), **changes)
            made[key] = export_model(model, tokenizer, tmp_path_factory.mktemp("model") / "model")
        return made[key]

    return directory


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def predict(model: Path, name: Path, content: str, *more: str) -> list[dict[str, Any]]:
    name.write_text(content, encoding="utf-8", newline="")
    output = name.with_name("out.jsonl")
    arguments = [f"model_dir={model}", f"input={name}", f"output={output}", "overwrite=true", "device=cpu"]
    assert run(["predict", *arguments, *more]) == 0
    assert not list(name.parent.glob("*.partial"))
    return read(output)


def pipe(python: Path, model: Path, content: str, *more: str) -> subprocess.CompletedProcess[str]:
    command = [python, "-m", "bertkit", "predict", f"model_dir={model}", "input=-", "output=-", "device=cpu"]
    return subprocess.run([*command, *more], input=content, capture_output=True, text=True)


TEXTS = ["kan lon", "", "min " * 60, "kar, lor"]
INPUTS = {
    "text.txt": "".join(f"{text}\n" for text in TEXTS),
    "text.tsv": "text\n" + "".join(f"{text}\n" for text in TEXTS),
    "text.csv": "text\n" + "".join(f'"{text}"\n' for text in TEXTS),
    "text.jsonl": "".join(json.dumps({"text": text}) + "\n" for text in TEXTS),
    "text.json": json.dumps([{"text": text} for text in TEXTS]),
    "text": "".join(f"{text}\r\n" for text in TEXTS).removesuffix("\r\n"),
    "bom": "\ufeff" + "".join(json.dumps({"text": text}) + "\n" for text in TEXTS),
}


@pytest.mark.parametrize("name", INPUTS)
def test_every_format_gives_the_same_lines(name: str, make: Make, tmp_path: Path) -> None:
    model_dir = make("sequence")
    rows = predict(model_dir, tmp_path / name, INPUTS[name])
    assert [row["id"] for row in rows] == ["0", "1", "2", "3"]
    model, tokenizer = load_model(model_dir), load_tokenizer(model_dir)
    for text, row in zip(TEXTS, rows, strict=True):
        ids = tokenizer(text, truncation=True, max_length=41, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            shares = model(ids).logits["sequence"][0].softmax(-1).tolist()
        assert list(row["probabilities"]) == ["bad", "good", "ugly"]
        assert list(row["probabilities"].values()) == pytest.approx(shares, abs=1e-5)
        assert row["label"] == ("bad", "good", "ugly")[int(np.argmax(shares))]


def test_pairs_ids_and_a_test_file_of_glue(make: Make, tmp_path: Path) -> None:
    content = 'index\tsentence1\tsentence2\n7\tkan "lon\tmin\n3\tkan\tlon "min\n'
    rte = make("sequence", labels=("not_entailment", "entailment"))
    rows = predict(rte, tmp_path / "test.tsv", content, "task=rte", "task.max_seq_length=40")
    assert [row["id"] for row in rows] == ["7", "3"]
    rows = predict(make("sequence"), tmp_path / "in.jsonl", '{"id": "a", "text": "kan"}\n{"id": "a", "text": "kan"}\n')
    assert [row["id"] for row in rows] == ["a", "a"]


def test_a_run_knows_its_columns_and_sizes(make: Make, tmp_path: Path, capsys: Capsys) -> None:
    """The settings of the run, unless the command line names a task."""
    arguments = ["task=sequence", "task.columns.text=review", "task.max_seq_length=8", "model_dir=x", "output_dir=y"]
    shutil.copytree(make("sequence"), tmp_path / "run" / "model")
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(compose("finetune", arguments)))
    (tmp_path / "run" / "manifest.json").write_text('{"identity": {}, "corpus": {"has_pairs": true}}')
    content = "review,text_pair\n" + "kan lon min kar lor,mir\n" + "kan lon min kar lor mir kan,mir\n"
    rows = predict(tmp_path / "run" / "model", tmp_path / "in.csv", content)
    assert rows[0]["probabilities"] == pytest.approx(rows[1]["probabilities"], abs=1e-6)  # both are cut to five pieces
    assert "in.csv read as csv: text in column 'review', text_pair in column 'text_pair'\n" in capsys.readouterr().err
    longer = predict(tmp_path / "run" / "model", tmp_path / "in.csv", content, "task.max_seq_length=40")
    assert longer[0]["probabilities"] != pytest.approx(longer[1]["probabilities"], abs=1e-6)
    other = predict(tmp_path / "run" / "model", tmp_path / "x.tsv", "b\ta\nmir\tkan lon min kar lor\n",
                    "task.columns.text=a", "task.columns.text_pair=b")  # fmt: skip
    assert other[0]["probabilities"] == pytest.approx(rows[0]["probabilities"], abs=1e-6)
    model = f"model_dir={tmp_path / 'run' / 'model'}"
    (tmp_path / "single.txt").write_text("kan\n")
    refused(run(["predict", model, f"input={tmp_path / 'single.txt'}", "output=-"]), "task=sequence ", capsys)
    for change, line in (("task.colums.text=a", "unknown key 'task.colums.text'; did you mean 'task.columns.text'?"),
                         ("task.max_seq_length=a", "task.max_seq_length='a': expected a whole number")):  # fmt: skip
        refused(run(["predict", model, f"input={tmp_path / 'single.txt'}", "output=-", change]), line, capsys)
    arguments = [model, f"input={tmp_path / 'in.csv'}", "output=-", "task=sequence", "task.max_seq_length=9"]
    refused(run(["predict", *arguments]), "no column 'text'", capsys)


def test_a_second_text_is_refused_by_what_was_trained_on_single_texts(
    make: Make, tmp_path: Path, capsys: Capsys
) -> None:
    """The prediction would be that of the first text; files, rows, requests and `evaluate` read alike. An empty cell holds nothing."""
    arguments = ["task=sequence", "task.max_seq_length=20", "model_dir=x", "output_dir=y"]
    shutil.copytree(make("sequence"), tmp_path / "run" / "model")
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(compose("finetune", arguments)))
    (tmp_path / "run" / "manifest.json").write_text('{"identity": {}, "corpus": {"has_pairs": false}}')
    single, masks = tmp_path / "run" / "model", make("masked_lm")
    expected = load_predictor(single, device="cpu")(["kan", "lon"])
    for model in (single, masks):
        rows = predict(model, tmp_path / "in.csv", "text,sentence2\nkan,\nlon,\n")
        assert [row["truncated"] for row in rows] == [False, False]
        (tmp_path / "in.csv").write_text("text,sentence2\nkan,\nlon,mir\n")
        wrong = "in.csv:3: sentence2: a second text, but this model takes single texts; leave it out, or set pair=null"
        refused(run(["predict", f"model_dir={model}", f"input={tmp_path / 'in.csv'}", "output=-"]), wrong, capsys)
        with pytest.raises(InputError, match="row 1: text_pair: a second text, but this model takes single texts"):
            load_predictor(model, device="cpu")([{"text": "kan", "text_pair": "mir"}])
        (served,) = open_models(build(ServeSettings, compose("serve", [f"model_dir={model}", "device=cpu"]))).values()
        (fault,) = served.predict_requests([[{"text": "kan", "text_pair": "mir"}]], 10**6).results
        assert str(fault) == "inputs[0]: text_pair: a second text, but this model takes single texts; leave it out"
        assert describe_model(served)["columns"] == ["text"]
    rows = predict(single, tmp_path / "in.csv", "text,sentence2\nkan,\nlon,mir\n", "task.columns.text_pair=null")
    assert rows == expected
    (tmp_path / "more.csv").write_text("text,text_pair,label\nkan,mir,good\n")
    refused(
        run(["evaluate", str(single), str(tmp_path / "more.csv"), "device=cpu"]),
        "more.csv:2: text_pair: a second text",
        capsys,
    )


def test_null_is_no_second_text_of_a_model_that_takes_single_texts(make: Make, tmp_path: Path, capsys: Capsys) -> None:
    model, null = make("sequence"), '{"text": "kan lon", "text_pair": null}\n'
    (alone,) = predict(model, tmp_path / "alone.jsonl", '{"text": "kan lon"}\n')
    capsys.readouterr()
    rows = predict(model, tmp_path / "pairs.jsonl", null + null.replace("null", '""'))
    assert "warning: 1 example had an empty text, the first at " in capsys.readouterr().err
    assert [row["probabilities"] == pytest.approx(alone["probabilities"], abs=1e-6) for row in rows] == [True, False]
    predictor = load_predictor(model, device="cpu")
    for row in ({"text": "kan lon", "text_pair": None}, ("kan lon", None)):
        assert predictor(row)["probabilities"] == pytest.approx(alone["probabilities"], abs=1e-6)
    needing = predict(model, tmp_path / "pairs.jsonl", null + null.replace("null", '""'), "task.needs_pair=true")
    assert needing[0]["probabilities"] == pytest.approx(needing[1]["probabilities"], abs=1e-6)  # as an empty cell
    assert "warning: 2 examples had an empty text" in capsys.readouterr().err


def test_null_is_no_second_text_wherever_rows_are_read(make: Make, start: Path, tmp_path: Path, capsys: Capsys) -> None:
    """`evaluate` measures what `predict` predicts, and what learned from single texts and pairs takes both."""
    model, words = make("sequence", scale=3), ("kan", "lon", "mir", "kar", "lor")
    texts = [" ".join(own) for own in itertools.permutations(words, 3)]
    null, empty = (
        "".join(json.dumps({"text": text, "text_pair": pair}) + "\n" for text in texts) for pair in (None, "")
    )
    labels = [row["label"] for row in predict(model, tmp_path / "in.jsonl", null)]
    assert labels != [row["label"] for row in predict(model, tmp_path / "in.jsonl", empty)]
    rows = [{"text": text, "text_pair": None, "label": label} for text, label in zip(texts, labels, strict=True)]
    (tmp_path / "dev.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    capsys.readouterr()
    arguments = ["task=sequence", "task.max_seq_length=20", "device=cpu"]
    assert run(["evaluate", str(model), str(tmp_path / "dev.jsonl"), *arguments]) == 0
    printed = capsys.readouterr()
    assert (json.loads(printed.out)["accuracy"], "empty text" in printed.err) == (1.0, False)

    more = {"model_dir": start, "device": "cpu", "num_epochs": 1, "dev_share": 0.3, "task.max_seq_length": 16}
    for name, pairs in (("mixed", ["mir", None]), ("pairs", ["mir", "kan"]), ("single", [None, None])):
        trained = [row | {"text_pair": pairs[n % 2]} for n, row in enumerate(rows)]
        run_dir = finetune(task="sequence", train=trained, output_dir=tmp_path / name, **more).model_dir
        line = "warning: 30 rows with null as a second text, the first at train: row 2, beside 30 pairs: they are single texts"
        assert (line in capsys.readouterr().out.splitlines()) == (name == "mixed")
        predictor = load_predictor(run_dir, device="cpu")
        if name == "pairs":
            with pytest.raises(InputError, match="no column 'text_pair'"):
                predictor([{"text": "kan lon"}])
            continue
        alone = predictor("kan lon")["probabilities"]
        for row in ({"text": "kan lon"}, {"text": "kan lon", "text_pair": None}):
            assert predictor([row])[0]["probabilities"] == pytest.approx(alone, abs=1e-6)
        if name == "mixed":
            assert predictor(("kan lon", ""))["probabilities"] != pytest.approx(alone, abs=1e-6)
        else:
            with pytest.raises(InputError, match="a second text, but this model takes single texts"):
                predictor([{"text": "kan lon", "text_pair": "mir"}])


def test_a_regression_of_several_numbers_is_refused(make: Make) -> None:
    """Its first number alone would be the answer."""
    folder = make("sequence", labels=("valence", "arousal", "dominance"), problem_type="regression")
    with pytest.raises(InputError, match="a regression of 3 numbers for each text") as caught:
        load_predictor(folder)
    assert len(caught.value.args) == 1
    assert load_model(folder)(torch.tensor([[2, 7, 3]])).logits["sequence"].shape == (1, 3)


def test_a_regression_has_a_number(make: Make, tmp_path: Path) -> None:
    (row,) = predict(make("sequence", labels=("score",), problem_type="regression"), tmp_path / "in.txt", "kan\n")
    assert isinstance(row["label"], float)
    assert "probabilities" not in row


def test_numbers_have_the_digits_of_float32(make: Make, tmp_path: Path) -> None:
    content = "".join(f"{text}\n" for text in TEXTS)
    for head in ("sequence", "masked_lm"):
        predict(make(head), tmp_path / "in.txt", content.replace("kan", "[MASK]") if head == "masked_lm" else content)
        numbers = re.findall(r"0\.0*([0-9]+)", (tmp_path / "out.jsonl").read_text())
        assert 6 < max(map(len, numbers)) <= 9, head


def test_words_in_a_sentence_a_line(make: Make, tmp_path: Path) -> None:
    sentences = [["kan", "lon\u00a0min"], [], ["kar"] * 2000, ["\u200b", "lor"], []]
    content = "".join((" ".join(words) or "\ufeff\u200b\u00a0") + "\n" for words in sentences)  # such a line is blank
    rows = predict(make("token"), tmp_path / "in.txt", content)
    assert [row["words"] for row in rows] == sentences
    assert [len(row["tags"]) for row in rows] == [2, 0, 2000, 2, 0]
    assert {tag for row in rows for tag in row["tags"]} <= {"O", "B-X", "I-X"}
    conll = (tmp_path / "out.conll").read_text(encoding="utf-8")
    tagged = [zip(row["words"], row["tags"], strict=True) for row in rows]
    assert conll == "".join("".join(f"{word}\t{tag}\n" for word, tag in each) + "\n" for each in tagged)
    lists = "".join(json.dumps({"tokens": row["words"]}) + "\n" for row in rows)
    assert predict(make("token"), tmp_path / "in.jsonl", lists) == rows


@pytest.mark.parametrize("name", ["in.conll", "in.txt", "eng.testb", "in.tsv"])
def test_conll_input_is_read_by_columns(name: str, make: Make, tmp_path: Path) -> None:
    rows = predict(make("token"), tmp_path / name, "kan B-X\nlon I-X\n\nmin O\n")
    assert [row["words"] for row in rows] == [["kan", "lon"], ["min"]]


RUNNING = ["Kan's lon-min, cafe\u0301\u200b!", "", "kan lon kar " * 40]


def test_entities_in_running_text(make: Make, tmp_path: Path, tokenizer: Tokenizer) -> None:
    """The words are those of the pre-tokenizer, the characters those of the entity, for lines and for columns."""
    content = "".join(f"{text}\n" for text in RUNNING)
    rows = predict(make("token"), tmp_path / "in.txt", content, "format=text")
    tagged: list[list[list[str]]] = [[]]
    for line in (tmp_path / "out.conll").read_text(encoding="utf-8").split("\n")[:-1]:
        tagged[-1].append(line.split("\t")) if line else tagged.append([])
    assert [word for word, _ in tagged[0]] == ["Kan", "'", "s", "lon", "-", "min", ",", "cafe\u0301", "!"]
    # the same as of the words given one by one
    words = "".join(json.dumps({"tokens": [word for word, _ in block]}) + "\n" for block in tagged[:3])
    by_words = predict(make("token"), tmp_path / "words.jsonl", words)
    assert [row["tags"] for row in by_words] == [[tag for _, tag in block] for block in tagged[:3]]
    for row, text, block in zip(rows, RUNNING, tagged[:3], strict=True):
        assert row["text"] == text
        starts = [number for number, (_, tag) in enumerate(block) if tag.startswith("B-") or
                  (tag == "I-X" and (number == 0 or block[number - 1][1] == "O"))]  # fmt: skip
        assert len(row["entities"]) == len(starts)
        for entity in row["entities"]:
            assert list(entity) == ["text", "label", "start", "end", "score"]
            assert text[entity["start"] : entity["end"]] == entity["text"] != ""
            assert entity["label"] == "X"
            assert 1 / 3 < entity["score"] <= 1
    assert sum(len(row["entities"]) for row in rows) > 3
    table = "number,text\n" + "".join(f'{n},"{text}"\n' for n, text in enumerate(RUNNING))
    assert predict(make("token"), tmp_path / "in.csv", table) == rows
    records = "".join(json.dumps({"text": text, "lang": "x"}) + "\n" for text in RUNNING)
    assert predict(make("token"), tmp_path / "in.jsonl", records) == rows


def test_one_text_goes_to_standard_output(make: Make, tmp_path: Path, capsys: Capsys) -> None:
    def printed_row(head: str, *arguments: str) -> dict[str, Any]:
        assert run(["predict", f"model_dir={make(head)}", "device=cpu", *arguments]) == 0
        actual = capsys.readouterr()
        assert actual.err == ""
        (line,) = actual.out.splitlines()
        row: dict[str, Any] = json.loads(line)
        return row

    pair = [f"text={TEXTS[0]}, ['min", "text_pair=kar=lor"]  # nothing of it is Hydra's
    record = json.dumps({"text": TEXTS[0] + ", ['min", "text_pair": "kar=lor"})
    (row,) = predict(make("sequence"), tmp_path / "in.jsonl", record)
    capsys.readouterr()
    assert printed_row("sequence", *pair) == row
    assert printed_row("token", "text=Kan lon.")["text"] == "Kan lon."
    assert len(printed_row("masked_lm", "text=kan [MASK].", "top_k=2")["masks"][0]) == 2
    assert load_predictor(make("token"), device="cpu")("Kan lon.") == printed_row("token", "text=Kan lon.")
    answer = printed_row("span", "text=kan?", "text_pair=lon min", *SPANS)
    assert answer["text"] in ("", "lon", "min", "lon min")
    for head, arguments, line in (
        ("sequence", ["text=kan", "input=x"], "input= and text=: set one of the two"),
        ("sequence", [], "missing value: set text=, or input="),
        ("sequence", ["text=kan", "format=csv"], "format=csv: has no effect with text="),
        ("sequence", ["input=x", "text_pair=kan"], "text_pair=kan: has no effect without text="),
        ("sequence", ["text=kan", "task.needs_pair=true"], "text='kan': this model takes pairs (text, text_pair)"),
        ("span", ["text=kan", *SPANS], "text='kan': this model takes pairs (question, context)"),
        ("token", ["text=kan", "text_pair=kan"], "text=('kan', 'kan'): this model takes single texts"),
        ("choice", ["text=kan"], "text='kan': this model takes rows"),
    ):
        refused(run(["predict", f"model_dir={make(head)}", "device=cpu", *arguments]), f"error: {line}", capsys)


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet"])
def test_the_ending_of_the_output_says_how_it_is_written(ending: str, make: Make, tmp_path: Path) -> None:
    """The rows of JSON lines, in each of the formats; with the input's fields beside them."""
    import pandas

    texts = [*TEXTS, 'a "b"\t,\nc']
    lines_in = [{"id": f"n{n}", "text": text, "label": "good", "stars": n} for n, text in enumerate(texts)]
    content = "".join(json.dumps(row) + "\n" for row in lines_in)
    rows = predict(make("sequence"), tmp_path / "in.jsonl", content, "carry_input=true")
    assert [list(row)[:4] for row in rows] == [["id", "text", "input_label", "stars"]] * len(rows)
    carried = [{key: row[key] for key in ("id", "text", "stars", "input_label")} for row in rows]
    assert carried == [
        {**{key: row[key] for key in ("id", "text", "stars")}, "input_label": "good"} for row in lines_in
    ]
    output = tmp_path / f"out.{ending}"
    arguments = ["predict", f"model_dir={make('sequence')}", f"input={tmp_path / 'in.jsonl'}", "device=cpu"]
    assert run([*arguments, f"output={output}", "carry_input=true"]) == 0
    assert not list(tmp_path.glob("*.partial"))
    if ending == "parquet":
        actual = pandas.read_parquet(output).to_dict("records")
        assert [row["probabilities"] for row in actual] == [row["probabilities"] for row in rows]
    else:
        read = pandas.read_csv(output, sep="\t" if ending == "tsv" else ",")
        actual = read.fillna({"text": ""}).to_dict("records")
        for name in LABELS["sequence"]:
            shares = [row["probabilities"][name] for row in rows]
            assert [row[f"probabilities.{name}"] for row in actual] == pytest.approx(shares)
    assert [row["text"] for row in actual] == texts
    ours, theirs = ([(row["id"], row["label"], row["stars"]) for row in each] for each in (actual, rows))
    assert ours == theirs


def test_no_field_of_an_input_replaces_a_prediction(make: Make, tmp_path: Path) -> None:
    """Fields named text and words are the input's own only where they are what the model has read."""
    record = {"question": "kan?", "context": "lon min", "sentence": "kar lor", "tokens": ["kar", "lor"]}
    record |= {"text": "other", "words": 2, "input_text": "more"}
    content = json.dumps(record) + "\n"
    span = [*SPANS, "task.spans.null_score_diff_threshold=100"]
    for head, field, more, copied in (
        ("span", "text", span, ()),
        ("token", "text", ["task.columns.text=sentence", "task.columns.words=null_words"], ()),
        ("token", "words", ["task.columns.words=tokens"], ()),
        ("masked_lm", "text", [], ("text",)),
    ):
        (alone,) = predict(make(head), tmp_path / "in.jsonl", content, *more)
        (row,) = predict(make(head), tmp_path / "in.jsonl", content, "carry_input=true", *more)
        assert {key: row[key] for key in alone} == alone, head
        others = {key: value for key, value in record.items() if key not in alone or key in copied}
        assert {key: row[key] for key in others} == others
        if field not in copied:
            assert row["input_input_text" if field == "text" else "input_words"] == record[field] != row[field]


def test_the_probabilities_of_an_earlier_model_stay_in_a_table(make: Make, tmp_path: Path) -> None:
    """Two models are compared from table to table: the later one's column took the place of the earlier one's."""
    column = f"probabilities.{LABELS['sequence'][0]}"
    write_to, output = tmp_path / "in.csv", tmp_path / "out.csv"
    write_to.write_text(f"text,{column}\nkan,7\n")
    arguments = [f"model_dir={make('sequence')}", f"input={write_to}", f"output={output}", "device=cpu"]
    assert run(["predict", *arguments, "carry_input=true"]) == 0
    (row,) = csv.DictReader(output.open())
    assert row[f"input_{column}"] == "7" != row[column]


def test_the_ids_of_an_input_are_kept(make: Make, tmp_path: Path) -> None:
    """Numbers stay numbers, also where training had other ids or none, and one of them twice."""
    ids = [17, 17, 5, None]
    content = "".join(json.dumps({"id": own, "text": "kan lon", "label": "good"}) + "\n" for own in ids)
    for more in ([], ["task.columns.id=null"], ["task.columns.id=[index,idx]"]):
        rows = predict(make("sequence"), tmp_path / "in.jsonl", content, "carry_input=true", *more)
        assert [row["id"] for row in rows] == [17, 17, 5, "3"]
        assert rows[3]["input_id"] is None
        rows = predict(make("sequence"), tmp_path / "in.jsonl", content, *more)
        assert [row["id"] for row in rows] == ["17", "17", "5", "3"]


def test_repeated_ids_of_an_input_are_counted_in_a_warning(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    words = "warning: 2 rows have the id of an earlier row, the first 'a' at {}; "
    ids = ["a", "b", "a", "c", "", "", "b"]
    rows = predict(make("sequence"), tmp_path / "in.csv", "id,text\n" + "".join(f"{own},kan\n" for own in ids))
    assert [row["id"] for row in rows] == ["a", "b", "a", "c", "4", "5", "b"]
    assert capsys.readouterr().err.count(words.format(f"{tmp_path / 'in.csv'}:4")) == 1
    for head in ("sequence", "token"):
        load_predictor(make(head), device="cpu")([{"id": own, "text": "kan"} for own in ids])
        assert capsys.readouterr().err.count(words.format("inputs: row 3")) == 1
    monkeypatch.setattr(labels, "MOST_IDS", 1)  # further ones take no memory
    predict(make("sequence"), tmp_path / "in.csv", "id,text\n" + "".join(f"{own},kan\n" for own in ids))
    assert "warning: 1 row has the id of an earlier row" in capsys.readouterr().err
    predict(make("sequence"), tmp_path / "in.csv", "id,text\na,kan\nb,kan\n,kan\n")
    assert "earlier row" not in capsys.readouterr().err
    monkeypatch.undo()
    for content in ("1,kan\n,lon\n2,kan\n", ",lon\n2,kan\n0,kan\n"):  # the number of a row is the id of another
        rows = predict(make("sequence"), tmp_path / "in.csv", f"id,text\n{content}")
        assert len({row["id"] for row in rows}) == 2
        assert "warning: 1 row has the id of an earlier row" in capsys.readouterr().err
    vectors = [f"input={tmp_path / 'in.csv'}", f"output={tmp_path / 'out.npy'}", "device=cpu"]
    for column, second in (("id", "a"), ("doc_id", "b")):
        (tmp_path / "in.csv").write_text(f"{column},text\na,kan\n{second},kan\n")
        assert run(["embed", f"model_dir={make('encoder')}", *vectors, "overwrite=true"]) == 0
        assert "warning" not in capsys.readouterr().err  # vectors have no ids, and embed no settings for them


def test_entities_in_parquet_and_csv(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The types of a column show late: its first chunk has no entity at all."""
    import pandas

    monkeypatch.setattr("bertkit.tasks.reading.readers.READ_AT_ONCE", 2)
    content = "".join(f"{text}\n" for text in ["", "", *RUNNING])
    rows = predict(make("token"), tmp_path / "in.txt", content, "format=text")
    arguments = ["predict", f"model_dir={make('token')}", f"input={tmp_path / 'in.txt'}", "format=text", "device=cpu"]
    for name in ("a.parquet", "b.csv"):
        assert run([*arguments, f"output={tmp_path / name}"]) == 0
    actual = pandas.read_parquet(tmp_path / "a.parquet")["entities"]
    assert [list(each) for each in actual] == [row["entities"] for row in rows]
    cells = pandas.read_csv(tmp_path / "b.csv")["entities"]
    assert [json.loads(cell) for cell in cells] == [row["entities"] for row in rows]


def squad(question: str, contexts: list[str]) -> str:
    paragraphs = [{"context": c, "qas": [{"id": f"q{n}", "question": question}]} for n, c in enumerate(contexts)]
    return json.dumps({"data": [{"paragraphs": paragraphs}]})


CONTEXTS = ["kan lon min", "", "kar lor mir " * 50, " ", "\u200b"]


def test_every_question_has_answer_and_null_odds(make: Make, tmp_path: Path) -> None:
    """A question of 300 pieces, contexts of none and of many windows."""
    rows = predict(make("span"), tmp_path / "in.json", squad("kan " * 300, CONTEXTS), *SPANS)
    assert [row["id"] for row in rows] == [f"q{n}" for n in range(5)]
    files = {name: json.loads((tmp_path / f"{name}.json").read_text()) for name in
             ("predictions", "nbest_predictions", "null_odds")}  # fmt: skip
    for row, context in zip(rows, CONTEXTS, strict=True):
        assert 0 <= row["no_answer_probability"] <= 1
        assert 0 < row["probability"] <= 1
        actual = context[row["start"] : row["end"]] if row["text"] else ""
        assert actual == row["text"] == files["predictions"][row["id"]]
        best = {each["text"]: each["probability"] for each in files["nbest_predictions"][row["id"]]}
        assert row["probability"] == pytest.approx(best[row["text"]], rel=1e-8)
    assert [row["text"] for row in rows][1] == ""
    assert list(files["null_odds"]) == [row["id"] for row in rows]
    flat = [{"id": f"q{n}", "question": "kan " * 300, "context": context} for n, context in enumerate(CONTEXTS)]
    lines = "".join(json.dumps(row) + "\n" for row in flat)
    before = {path.name: path.read_text() for path in tmp_path.glob("*s.json")}
    assert predict(make("span"), tmp_path / "in.jsonl", lines, *SPANS) == rows
    assert {path.name: path.read_text() for path in tmp_path.glob("*s.json")} == before
    always = [*SPANS, "task.spans.is_always_answered=true"]
    rows = predict(make("span"), tmp_path / "in.json", squad("kan", ["lon min", ""]), *always)
    assert [bool(row["text"]) for row in rows] == [True, False]


def test_choices_have_probabilities(make: Make, tmp_path: Path) -> None:
    content = "sent1,sent2,ending0,ending1,ending2,ending3\nkan,lon,a,b,c,d\nkan,,a,,c,d\n"
    rows = predict(make("choice"), tmp_path / "in.csv", content, "task=swag", "task.max_seq_length=40")
    assert [len(row["probabilities"]) for row in rows] == [4, 4]
    own = '{"id": "x", "context": "kan", "endings": ["lon a", "lon b", "lon c", "lon d"]}\n'
    (general,) = predict(make("choice"), tmp_path / "in.jsonl", own)
    assert general == {**rows[0], "id": "x", "probabilities": pytest.approx(rows[0]["probabilities"], abs=1e-6)}
    columns = ["task=choice", "task.columns.context=question", "task.columns.endings=[A,B]", "task.max_seq_length=40"]
    (row,) = predict(make("choice"), tmp_path / "own.csv", "question,A,B\nkan,lon a,lon b\n", *columns)
    two = rows[0]["probabilities"][:2]
    assert row["probabilities"] == pytest.approx(np.divide(two, sum(two)))
    assert all(row["label"] == int(np.argmax(row["probabilities"])) for row in rows)


def test_masks_are_filled_with_most_probable_tokens(make: Make, tmp_path: Path, tokenizer: Tokenizer) -> None:
    texts = ["kan [MASK] min [MASK]", "", "kan", "kan " * 99 + "[MASK]" + " lon" * 99]
    model_dir = make("masked_lm")
    rows = predict(model_dir, tmp_path / "in.txt", "".join(f"{text}\n" for text in texts), "top_k=3")
    assert [row["text"] for row in rows] == texts
    assert [len(row["masks"]) for row in rows] == [2, 0, 0, 1]
    model, ids = load_model(model_dir), torch.tensor([tokenizer(texts[0])["input_ids"]])
    with torch.no_grad():
        shares = model(ids).logits["masked_lm"][0].softmax(-1)
    places = [place for place, piece in enumerate(ids[0].tolist()) if piece == tokenizer.facts.mask]
    for place, mask in zip(places, rows[0]["masks"], strict=True):
        values, best = shares[place].topk(3)
        assert [each["token"] for each in mask] == [tokenizer.vocab[piece] for piece in best.tolist()]
        assert [each["probability"] for each in mask] == pytest.approx(values.tolist(), abs=1e-6)


@pytest.mark.parametrize(("command", "output"), [("predict", "out.csv"), ("embed", "out.npy")])
def test_empty_texts_are_counted_in_a_warning(
    command: str, output: str, make: Make, tmp_path: Path, capsys: Capsys
) -> None:
    source = tmp_path / "in.csv"
    source.write_text("text,x\nkan,1\n,2\nlon,3\n  ,4\nmin,5\n")
    arguments = [f"model_dir={make('sequence')}", f"input={source}", f"output={tmp_path / output}", "device=cpu"]
    assert run([command, *arguments]) == 0
    warned = f"warning: 2 examples had an empty text, the first at {source}:3; ignore their results\n"
    assert capsys.readouterr().err.count(warned) == 1


def test_every_mask_of_a_long_text_stands_amid_its_text(tokenizer: Tokenizer) -> None:
    from bertkit.tasks.fill_mask import FillMaskTask
    from bertkit.tasks.sequence import SequenceExample

    facts = tokenizer.facts
    kan, lon = (tokenizer(word)["input_ids"][1] for word in ("kan", "lon"))
    text = "[MASK] " + "kan " * 20 + "[MASK] lon" * 1 + " lon" * 20 + " [MASK]"
    task = task_config("sequence", "task.max_seq_length=9")
    actual = FillMaskTask(task).features([SequenceExample("0", text, None, None)], tokenizer)
    mask, ends = facts.mask, (facts.cls, facts.sep)
    assert [each.input_ids[1:-1] for each in actual] == [
        [mask] + [kan] * 6, [kan] * 3 + [mask] + [lon] * 3, [lon] * 6 + [mask]
    ]  # fmt: skip
    assert [each.masks for each in actual] == [[1], [4], [7]]
    assert {(each.input_ids[0], each.input_ids[-1]) for each in actual} == {ends}


def test_predictions_do_not_depend_on_chunks(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    words = ["kan", "lon", "min", "kar", "lor", "mir"]
    content = "".join(" ".join(rng.choice(words, rng.integers(0, 30))) + "\n" for _ in range(53))
    lines = "".join(json.dumps({"text": line}) + "\n" for line in content.split("\n")[:-1])
    whole = predict(make("sequence"), tmp_path / "in.jsonl", lines)
    monkeypatch.setattr("bertkit.tasks.reading.readers.READ_AT_ONCE", 7)
    monkeypatch.setitem(micro_batches.AUTO_MICRO_TOKENS, "cpu", 50)
    for name, text in (("in.jsonl", lines), ("in.txt", content)):
        parts = predict(make("sequence"), tmp_path / name, text)
        assert [row["id"] for row in parts] == [str(number) for number in range(53)]
        for one, other in zip(whole, parts, strict=True):
            assert one["probabilities"] == pytest.approx(other["probabilities"], abs=1e-6)
    paragraphs = squad("kan", ["lon min"] * 20)
    assert len(predict(make("span"), tmp_path / "in.json", paragraphs, *SPANS)) == 20
    assert len(json.loads((tmp_path / "nbest_predictions.json").read_text())) == 20


def test_standard_input_becomes_standard_output(make: Make, tmp_path: Path, python: Path) -> None:
    done = pipe(python, make("token"), "kan lon\n\nmin\n")
    assert done.returncode == 0, done.stderr
    assert [len(json.loads(line)["tags"]) for line in done.stdout.splitlines()] == [2, 0, 1]
    assert done.stderr == "- read as words: a sentence of words per line\n"
    done = pipe(python, make("span"), squad("kan", CONTEXTS), *SPANS)
    assert done.returncode == 0, done.stderr
    from_file = predict(make("span"), tmp_path / "in.json", squad("kan", CONTEXTS), *SPANS)
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == [row["id"] for row in from_file]
    done = pipe(python, make("sequence"), "")
    warning = "warning: input=- has no examples; there is nothing to predict\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, "", warning)


def test_closed_output_pipe_ends_predict_quietly(make: Make, tmp_path: Path, python: Path) -> None:
    (tmp_path / "in.txt").write_text("kan lon\n" * 5000)
    command = f"'{python}' -m bertkit predict model_dir={make('sequence')} input=in.txt output=- | head -n 1"
    done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True)
    assert json.loads(done.stdout)["id"] == "0"
    assert done.stderr == "in.txt read as text: a text per line\n"


def test_bad_line_after_good_ones_is_located(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    monkeypatch.setattr("bertkit.tasks.reading.readers.READ_AT_ONCE", 3)
    (tmp_path / "in.jsonl").write_text('{"text": "kan"}\n' * 7 + '{"text": 5}\n' + '{"text": "kan"}\n')
    arguments = ["predict", f"model_dir={make('sequence')}", f"input={tmp_path / 'in.jsonl'}", "device=cpu"]
    assert run([*arguments, f"output={tmp_path / 'out.jsonl'}"]) == 2
    printed = capsys.readouterr().err
    assert f"{tmp_path / 'in.jsonl'}:8: 'text' is 5; expected text" in printed
    assert f"6 predictions before it are in {tmp_path / 'out.jsonl.partial'}" in printed
    assert printed.count("\n") == 2  # the first one says what the input was taken for
    assert not (tmp_path / "out.jsonl").exists()
    assert [row["id"] for row in read(tmp_path / "out.jsonl.partial")] == [str(n) for n in range(6)]
    assert run([*arguments, "output=-"]) == 2
    assert len([json.loads(line) for line in capsys.readouterr().out.splitlines()]) == 6


REFUSALS = [
    ("sequence", "in.jsonl", '{"text": \n', [], "in.jsonl:1: "),
    ("sequence", "in.txt", b"kan\nStra\xdfe\n", [], "in.txt:2: "),
    ("sequence", "in.txt", "kan\0\n", [], "in.txt:1: "),
    ("sequence", "in.tsv", "text\tid\nkan\t1\t2\n", [], "in.tsv:2: "),
    ("token", "out.conll", "kan O\n", [], "out.conll "),
    ("sequence", "in.csv", "a,b\nkan,lon\n", ["task.needs_pair=true"], "no column 'text' or 'sentence'"),
    ("sequence", "in.txt", "kan\rlon\r", [], "in.txt:1: its lines end in carriage returns alone; convert them"),
    ("sequence", "in.tsv", "kan\n", ["task=mrpc", "task.max_seq_length=40"], "has the labels 'bad', 'good', 'ugly'; task=mrpc has"),
    ("sequence", "in", "kan\n", ["task.needs_pair=true"], "in: task=sequence "),
    ("sequence", "in.txt", "kan\n", ["task=squad2"], "task=squad2 is of kind spans"),
    ("sequence", "in.txt", "kan\n", ["task=sequence"], "task.max_seq_length=128"),
    ("sequence", "in.conll", "kan O\n", [], "in.conll: format conll "),
    ("sequence", "in.txt", "kan\n", ["format=words"], "format words "),
    ("token", "in.conll", "kan O\nlon\n", [], "in.conll:2: "),
    ("span", "in.jsonl", '{"id": 1, "question": "a", "context": "b"}\n' * 2, SPANS, "in.jsonl:2: id '1'"),
    ("encoder", "in.txt", "kan\n", [], "only an encoder"),
    ("masked_lm", "in.txt", "kan\n", ["task=sst2"], "no head for task=sst2, only masked_lm"),
    ("sequence", "missing.txt", None, [], "missing.txt"),
]  # fmt: skip


@pytest.mark.parametrize(("head", "name", "content", "more", "line"), REFUSALS)
def test_bad_predict_inputs_are_refused(
    head: str,
    name: str,
    content: str | bytes | None,
    more: list[str],
    line: str,
    make: Make,
    tmp_path: Path,
    capsys: Capsys,
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    before = sorted(tmp_path.iterdir())
    arguments = [
        f"model_dir={make(head)}",
        f"input={tmp_path / name}",
        f"output={tmp_path / 'out.jsonl'}",
        "device=cpu",
    ]
    refused(run(["predict", *arguments, *more]), line, capsys)
    assert sorted(tmp_path.iterdir()) == before


def test_several_labels_at_once(make: Make, tmp_path: Path, capsys: Capsys) -> None:
    """A probability for each label by itself, and those that are more likely than not."""
    model_dir = make("sequence", problem_type="multi_label_classification")
    rows = predict(model_dir, tmp_path / "in.txt", "".join(f"{text}\n" for text in TEXTS))
    model, tokenizer = load_model(model_dir), load_tokenizer(model_dir)
    for text, row in zip(TEXTS, rows, strict=True):
        ids = tokenizer(text, truncation=True, max_length=41, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            shares = model(ids).logits["sequence"][0].sigmoid().tolist()
        assert list(row["probabilities"]) == ["bad", "good", "ugly"]
        assert list(row["probabilities"].values()) == pytest.approx(shares, abs=1e-5)
        assert row["label"] == [name for name, share in row["probabilities"].items() if share > 0.5]
    assert {len(row["label"]) for row in rows} != {1}
    for value, more in ((model_dir, "false"), (make("sequence"), "true")):
        task = ["task=sequence", "task.max_seq_length=20", f"task.multi_label={more}"]
        assert run(["predict", f"model_dir={value}", f"input={tmp_path / 'in.txt'}", "output=-", *task]) == 2
        assert f"task.multi_label={more}, but model_dir={value} predicts" in capsys.readouterr().err


def test_rows_with_gaps_and_empty_ones_have_a_line(make: Make, tmp_path: Path, capsys: Capsys) -> None:
    rows = predict(make("sequence"), tmp_path / "in.tsv", "text\ttext_pair\nkan\tlon\n\nmin\n")
    assert [row["id"] for row in rows] == ["0", "1", "2"]
    printed = capsys.readouterr().err.splitlines()
    assert printed[0] == f"{tmp_path / 'in.tsv'} read as tsv: text in column 'text', text_pair in column 'text_pair'"
    assert printed[1].startswith("warning: 1 row had")
    assert f"{tmp_path / 'in.tsv'}:4" in printed[1]


def test_files_of_others_are_not_overwritten(make: Make, tmp_path: Path, capsys: Capsys) -> None:
    """Neither those of a run, nor what is there already, unless it is said."""
    run_dir, other = tmp_path / "run", tmp_path / "other"
    for folder in (run_dir, other):
        folder.mkdir()
        (folder / "predictions.json").write_text("{}")
    for name in ("config.yaml", "manifest.json"):
        (run_dir / name).write_text("{}")
    (tmp_path / "in.json").write_text(squad("kan", ["lon min"]))
    arguments = [f"model_dir={make('span')}", f"input={tmp_path / 'in.json'}", "device=cpu", *SPANS]
    for output, line in (
        (run_dir / "test.jsonl", f"{run_dir / 'predictions.json'} "),
        (run_dir / "metrics.jsonl", f"{run_dir / 'metrics.jsonl'} "),
        (other / "test.jsonl", f"{other / 'predictions.json'} "),
    ):
        refused(run(["predict", *arguments, f"output={output}"]), line, capsys)
        assert (output.parent / "predictions.json").read_text() == "{}"
        assert not output.exists()
    output = tmp_path / "new" / "test.jsonl"
    for more, code, extra in ([], 0, ""), ([], 0, ""), ([], 2, "mine"), (["overwrite=true"], 0, ""):
        output.parent.mkdir(exist_ok=True)
        output.open("a").write(extra)  # also changes its time
        assert run(["predict", *arguments, f"output={output}", *more]) == code


@pytest.mark.slow
@pytest.mark.parametrize("command", ["predict", "embed"])
def test_memory_does_not_grow_with_the_input(command: str, make: Make, tmp_path: Path) -> None:
    """10,000 lines of 2,000 characters take little more than 1,000."""
    code = "import sys, resource; from bertkit.cli import run; code = run(sys.argv[1:]); "
    code += "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss); sys.exit(code)"
    arguments = [f"model_dir={make('sequence')}", f"input={tmp_path / 'in.txt'}"]
    peaks = []
    for count in (1_000, 10_000):
        (tmp_path / "in.txt").write_text(("kan lon min " * 160 + "\n") * count)
        started = [
            sys.executable,
            "-c",
            code,
            command,
            *arguments,
            f"output={tmp_path / f'{count}.jsonl'}",
            "device=cpu",
        ]
        peaks.append(int(output_of(started)) / 1024)
        assert len(read(tmp_path / f"{count}.jsonl")) == count
    assert peaks[1] < peaks[0] + 16, peaks  # MB; the input is 19 MB, its ids and features many times that


def test_a_record_without_columns_is_refused_by_a_tagger(make: Make, tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "in.jsonl").write_text('{}\n{"words": ["kan"]}\n')
    code = run(["predict", f"model_dir={make('token')}", f"input={tmp_path / 'in.jsonl'}", "output=-", "device=cpu"])
    refused(code, "in.jsonl:1: no column 'tokens' or 'words' (it has: none)", capsys)


def test_texts_without_a_mask_are_counted(make: Make, tmp_path: Path, capsys: Capsys) -> None:
    rows = predict(make("masked_lm"), tmp_path / "in.txt", "kan lon\nkan [MASK]\nmin\n", "top_k=1")
    assert [len(row["masks"]) for row in rows] == [0, 1, 0]
    assert (
        "warning: 2 of 3 texts without a mask: this model predicts the words that masks stand for; "
        in capsys.readouterr().err
    )
    predict(make("masked_lm"), tmp_path / "in.txt", "kan [MASK]\n", "top_k=1")
    assert "without a mask" not in capsys.readouterr().err


def test_a_pair_of_texts_is_one_input_of_python(make: Make, tmp_path: Path) -> None:
    """The function took it for two texts, where the predictor, the command and a request take a pair."""
    model, pair = make("sequence", scale=3), ("kan lon", "mir")
    (row,) = bertkit.predict(model, pair, device="cpu")
    assert row == load_predictor(model, device="cpu")(pair)
    assert row["probabilities"] != bertkit.predict(model, ["kan lon"], device="cpu")[0]["probabilities"]
    views = []
    for number, inputs in enumerate((pair, [pair])):
        bertkit.view(model, input=inputs, steps=0, device="cpu", output=tmp_path / f"{number}.json")
        views.append(json.loads((tmp_path / f"{number}.json").read_text()))
    assert views[0] == views[1]
    with pytest.raises(InputError, match=r"row 1: \('kan', 'lon', 'mir'\): this model takes pairs"):
        bertkit.predict(model, ("kan", "lon", "mir"), device="cpu")


def test_python_warns_of_the_inputs_as_the_command_does(make: Make) -> None:
    """Once for texts that come one by one, as a loop gives them."""
    for head, text, warning in (
        ("masked_lm", "kan lon", "1 of 2 texts without a mask: this model predicts the words that masks stand for"),
        ("sequence", "kan " * 60, r"1 of 2 examples were truncated by task\.max_seq_length=41; raise it"),
    ):
        predictor = load_predictor(make(head), device="cpu")
        with pytest.warns(UserWarning, match=warning) as caught:
            rows = predictor([text, "kan [MASK]"])
        assert (len(rows), len(caught)) == (2, 1)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            for _ in range(3):
                predictor(text)
        assert len(caught) == 1


def test_an_id_is_a_whole_number_whether_it_has_a_decimal_point_or_not(make: Make, tmp_path: Path) -> None:
    """A column of whole numbers with a gap is written so by pandas; predictions are joined to rows by their ids."""
    rows = [{"id": own, "text": "kan lon"} for own in (7.0, 8, None, 2.5, "3.0")]
    content = "".join(json.dumps(row) + "\n" for row in rows)
    for more in ([], ["carry_input=true"]):
        written = predict(make("sequence"), tmp_path / "in.jsonl", content, *more)
        assert "input_id" not in written[0]
        assert [str(row["id"]) for row in written] == [*(["7.0"] if more else ["7"]), "8", "2", "2.5", "3.0"]
    assert [row["id"] for row in load_predictor(make("sequence"), device="cpu")(rows)] == ["7", "8", "2", "2.5", "3.0"]
