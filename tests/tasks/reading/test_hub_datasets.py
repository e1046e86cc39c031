"""The hub."""

import pytest
from task_configs import task_config
from task_files import rows, tagged

from bertkit.base.errors import InputError
from bertkit.tasks.reading.readers import read_examples


def test_the_hub_without_a_network() -> None:
    with pytest.raises(InputError) as caught:
        read_examples(task_config("mrpc"), None, "dev")
    message = str(caught.value)
    assert message.startswith("task=mrpc: cannot read nyu-mll/glue/mrpc of the hub, split validation (")
    assert message.endswith("set data_dir= to the task's files, or fill HF_HOME where there is a network, or set task.hub.path= to another copy")  # fmt: skip
    assert "\n" not in message
    with pytest.raises(InputError, match="task=squad1: no test split on the hub"):
        read_examples(task_config("squad1"), None, "test")


def test_the_hub_by_its_own_column_names_and_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels come as numbers there, with the names beside them."""
    import datasets

    asked = []

    def load(path: str, name: str | None, split: str, revision: str | None) -> datasets.Dataset:
        asked.append((path, name, split, revision))
        return held

    monkeypatch.setattr(datasets, "load_dataset", load)
    features = {
        "sentence1": datasets.Value("string"),
        "sentence2": datasets.Value("string"),
        "label": datasets.ClassLabel(names=["equivalent", "not_equivalent"]),  # another order than ours
        "idx": datasets.Value("int32"),
    }
    values = {"sentence1": ["a", "b"], "sentence2": ["c", "d"], "label": [0, 1], "idx": [5, 6]}
    held = datasets.Dataset.from_dict(values, features=datasets.Features(features))
    source = read_examples(task_config("mrpc"), None, "dev")
    assert rows(source) == [("5", "a", "c", "equivalent"), ("6", "b", "d", "not_equivalent")]
    held = datasets.Dataset.from_dict({**values, "label": [-1, -1]}, features=datasets.Features(features))
    assert [row[3] for row in rows(read_examples(task_config("mrpc"), None, "test"))] == [None, None]
    tags = datasets.Sequence(datasets.ClassLabel(names=["O", "B-PER"]))
    words = datasets.Sequence(datasets.Value("string"))
    held = datasets.Dataset.from_dict(
        {"tokens": [["Bob", "x"]], "ner_tags": [[1, 0]]},
        features=datasets.Features({"tokens": words, "ner_tags": tags}),
    )
    assert tagged(read_examples(task_config("conll2003"), None, "train")) == [(("Bob", "x"), ("B-PER", "O"))]
    assert asked == [
        ("nyu-mll/glue", "mrpc", "validation", None),
        ("nyu-mll/glue", "mrpc", "test", None),
        ("lhoestq/conll2003", None, "train", None),
    ]
