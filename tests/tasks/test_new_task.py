"""A task of one's own is one file with its class, registered as a plug-in: here grades, which are trained as labels and
predicted as their mean, so that a model may say 2.5.
"""

import dataclasses
import importlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from conftest import Capsys, options_so_far, small_model
from task_configs import task_config

import bertkit
from bertkit import export_model
from bertkit.base import plugins
from bertkit.base.errors import InputError
from bertkit.cli import run
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.tasks.feature import Feature, Logits, pieces, softmax, text_feature
from bertkit.tasks.reading.labels import Labels
from bertkit.tasks.reading.readers import read_file
from bertkit.tasks.reading.reading import Reading, optional_value, required_text
from bertkit.tasks.scoring import metrics
from bertkit.tasks.task import TABLES, ExtraFile
from bertkit.tasks.task_config import KINDS
from bertkit.tasks.trainable import HeadTask, TaskMetrics, is_constant, task_of


@dataclasses.dataclass(frozen=True)
class Essay:
    id: str
    text: str
    grade: str | None


class Near(NamedTuple):
    below: float
    above: float


class Grades(HeadTask[Essay, Feature, float]):
    kind = "grades"
    head = "sequence"
    unit = "essay"
    formats = ("text", *TABLES)
    plain = "text"

    def read(self, reading: Reading) -> Iterator[Essay]:
        text = reading.find(self.config.columns.text, "text")
        field, ids = reading.label_field(), reading.ids()
        reading.labels = labels = Labels(self.config, field, reading.known_labels, reading.table.is_typed)

        def essay(row: Any, where: str, line: int) -> Essay:
            grade = None if field is None else labels.name_of(row[field], where)
            return Essay(ids.take(optional_value(row, ids.field), where, line), required_text(row, text, where), grade)

        return reading.each(essay)

    def features(self, examples: Sequence[Essay], tokenizer: Tokenizer) -> list[Feature]:
        texts = pieces(tokenizer, [example.text for example in examples])
        numbers = {None: None, **{name: number for number, name in enumerate(self.labels)}}
        return [
            text_feature(tokenizer, place, text, None, numbers[example.grade], self.config.max_seq_length)
            for place, (example, text) in enumerate(zip(examples, texts, strict=True))
        ]

    def predictions(
        self, examples: Sequence[Essay], features: Sequence[Feature], logits: Sequence[Logits]
    ) -> list[float]:
        return [float(softmax(row) @ np.array(self.labels, float)) for row in logits]

    def row(self, example: Essay, prediction: float) -> dict[str, Any]:
        return {"id": example.id, "grade": prediction, "near": Near(prediction - 1 / 3, prediction + 1 / 3)}

    def extra_files(self) -> Sequence[ExtraFile[Essay, float]]:
        return [ExtraFile(".grades", lambda _, predictions: "".join(f"{grade:.3f}\n" for grade in predictions))]

    def content(self, example: Essay) -> str:
        return example.text

    def labels_of(self, example: Essay) -> Sequence[str | None]:
        return [example.grade]

    def is_labelled(self, example: Essay) -> bool:
        return example.grade is not None

    def reference(self, example: Essay) -> float:
        return float(example.grade or "nan")

    def fitting_metrics(self) -> TaskMetrics:
        return TaskMetrics("grades", ("pearson", "spearmanr"))

    def compared(
        self, examples: Sequence[Essay], predictions: Sequence[float]
    ) -> tuple[metrics.Inputs, metrics.Inputs]:
        return predictions, [*map(self.reference, examples)]

    def is_degenerate(self, examples: Sequence[Essay], predictions: Sequence[float]) -> bool:
        return is_constant(predictions, map(self.reference, examples))


GIVEN = ("kind=grades", "metrics=[pearson]", "best_metric=pearson")


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in KINDS.values():  # lest they register in the copy alone
        importlib.import_module(module)
    monkeypatch.setattr(plugins, "_options", options_so_far())
    bertkit.task("grades")(Grades)


def write(folder: Path) -> None:
    for name in ("train", "dev"):
        rows = [f"{'kan' if n % 3 == 1 else 'lon min'}\t{n % 3 + 1}\n" for n in range(11)]
        (folder / f"{name}.tsv").write_text("text\tlabel\n" + "".join(rows))


def test_plug_in_task_is_read_checked_and_scored(tmp_path: Path, tokenizer: Tokenizer) -> None:
    write(tmp_path)
    task = task_config("sequence", *(f"task.{setting}" for setting in GIVEN))
    source = read_file(task, tmp_path / "dev.tsv", True)
    assert source.examples[1] == Essay("1", "kan", "2")
    assert source.describe().endswith("dev.tsv (tsv): 11 essays; 1 4 (36.4%), 2 4 (36.4%), 3 3 (27.3%)")
    assert [len(part.examples) > 0 for part in source.hold_out(0.8)] == [True, True]
    features = list(source.task.each_feature(source.examples, tokenizer))
    assert [feature.label for feature in features[:3]] == [0, 1, 2]
    logits = [np.eye(3)[feature.label] * 50 for feature in features]
    grades = source.task.predictions(source.examples, features, logits)
    assert grades == pytest.approx([float(example.grade) for example in source.examples])
    assert source.task.rows(source.examples, features, [2.0] * 11)[1]["near"] == (1.66666667, 2.33333333)
    assert source.task.score(source.examples, grades)["pearson"] == pytest.approx(1)
    assert [*source.task.sampled(source.examples, grades)] == ["pearson"]
    source.task.check_metrics()
    with pytest.raises(InputError, match=r"task\.metrics: accuracy .*grades"):
        task_of(dataclasses.replace(task, metrics=("accuracy",)), source.labels).check_metrics()


def test_plug_in_task_is_finetuned_evaluated_and_predicted(
    tmp_path: Path, tokenizer: Tokenizer, capsys: Capsys
) -> None:
    write(tmp_path)
    model = export_model(small_model(tokenizer.vocab_size, heads=("masked_lm",)), tokenizer, tmp_path / "model")
    task = ["task=sequence", "task.max_seq_length=9", *(f"task.{setting}" for setting in GIVEN)]
    arguments = [f"data_dir={tmp_path}", "device=cpu"]
    sizes = ["num_epochs=1", "batch.sequences=5", "schedule.warmup_steps=0"]
    output = f"output_dir={tmp_path / 'run'}"
    assert run(["finetune", *task, *arguments, *sizes, f"model_dir={model}", output]) == 0
    assert "11 essays" in capsys.readouterr().out
    assert "pearson" in json.loads((tmp_path / "run" / "eval.json").read_text())
    assert run(["evaluate", *arguments, f"model_dir={tmp_path / 'run'}", "split=dev"]) == 0
    assert json.loads(capsys.readouterr().out)["num_examples"] == 11
    (tmp_path / "in.txt").write_text("kan\n\nlon\n")
    places = [f"input={tmp_path / 'in.txt'}", f"output={tmp_path / 'out.jsonl'}"]
    assert run(["predict", f"model_dir={tmp_path / 'run'}", *places, "device=cpu"]) == 0
    printed = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["id"] for row in printed] == ["0", "1", "2"]
    assert all(1 < row["grade"] < 3 for row in printed)
    assert (tmp_path / "out.grades").read_text().splitlines() == [f"{row['grade']:.3f}" for row in printed]


def test_unknown_kind_of_task_is_refused() -> None:
    kinds = "sequence or tagging or spans or choice or generation or minimal_pairs or grades"
    with pytest.raises(InputError, match=rf"task\.kind='grade': expected {kinds}"):
        task_config("sequence", "task.kind=grade")
