"""The facts of each benchmark, as published; settings that cannot work are refused."""

from pathlib import Path

import pytest
from task_configs import task_config

from bertkit.base.errors import InputError
from bertkit.base.typed_settings import build, conf_dir, to_mapping
from bertkit.tasks.task_config import TaskConfig, without_retired

# name: (labels, what the files hold, metrics, the main one, hub, batch, peak learning rate, epochs, max_seq_length)
ENTAILS = ("entailment", "not_entailment")
MNLI = ("entailment", "neutral", "contradiction")
NER = ("O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC", "B-MISC", "I-MISC")
UPOS = [
    "ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "INTJ", "NOUN", "NUM", "PART", "PRON", "PROPN", "PUNCT", "SCONJ",
    "SYM", "VERB", "X",
]  # fmt: skip
TABLE = {
    "cola": (("unacceptable", "acceptable"), ("0", "1"), ("matthews_correlation",), "matthews_correlation", 32, 2e-5, 3),
    "sst2": (("negative", "positive"), ("0", "1"), ("accuracy",), "accuracy", 32, 2e-5, 3),
    "mrpc": (("not_equivalent", "equivalent"), ("0", "1"), ("accuracy", "f1"), "f1", 32, 2e-5, 5),
    "stsb": ("regression", None, ("pearson", "spearmanr"), "spearmanr", 32, 2e-5, 3),
    "qqp": (("not_duplicate", "duplicate"), ("0", "1"), ("accuracy", "f1"), "f1", 32, 2e-5, 3),
    "mnli": (MNLI, None, ("accuracy",), "accuracy", 32, 2e-5, 3),
    "qnli": (ENTAILS, None, ("accuracy",), "accuracy", 32, 2e-5, 3),
    "rte": (ENTAILS, None, ("accuracy",), "accuracy", 32, 2e-5, 3),
    "wnli": (ENTAILS[::-1], ("0", "1"), ("accuracy",), "accuracy", 32, 2e-5, 5),
    "ax": (MNLI, None, ("matthews_correlation",), "matthews_correlation", 32, 2e-5, 3),
    "squad1": (None, None, ("squad",), "f1", 12, 3e-5, 2),
    "squad2": (None, None, ("squad_v2",), "f1", 48, 5e-5, 2),
    "conll2003": (NER, None, ("seqeval",), "overall_f1", 32, 5e-5, 3),
    "pos": (tuple(UPOS), None, ("accuracy",), "accuracy", 32, 5e-5, 3),
    "swag": (None, None, ("accuracy",), "accuracy", 16, 2e-5, 3),
    "choice": (None, None, ("accuracy",), "accuracy", 16, 2e-5, 3),
    "minimal_pairs": (None, None, ("group_accuracy",), "accuracy", 16, 2e-5, 3),
    "sequence": ("auto", None, ("accuracy",), "accuracy", 32, 2e-5, 3),
    "tagging": ("auto", None, ("seqeval",), "overall_f1", 32, 5e-5, 3),
    "spans": (None, None, ("squad_v2",), "f1", 48, 5e-5, 2),
    "regression": ("regression", None, ("pearson", "spearmanr", "r2"), "r2", 32, 2e-5, 3),
    "generation": (None, None, ("rouge", "exact_match_text"), "rougeL", 64, 5e-5, 10),
    "translation": (None, None, ("bleu", "chrf"), "bleu", 64, 5e-5, 10),
}  # fmt: skip
TABLE |= {alias: TABLE[name] for alias, name in (("classification", "sequence"), ("ner", "tagging"), ("qa", "spans"))}
KINDS = {
    **dict.fromkeys(("squad1", "squad2", "spans", "qa"), "spans"), **dict.fromkeys(("conll2003", "pos", "ner"), "tagging"),
    **dict.fromkeys(("swag", "choice"), "choice"), **dict.fromkeys(("generation", "translation"), "generation"),
    "minimal_pairs": "minimal_pairs",
}  # fmt: skip
LENGTHS = {"squad1": 384, "squad2": 384, "spans": 384, "qa": 384, "generation": 512}


def test_every_task_is_in_the_table() -> None:
    assert sorted(path.stem for path in (conf_dir() / "task").glob("*.yaml")) == sorted(TABLE)
    assert len(TABLE) == 26


@pytest.mark.parametrize("name", TABLE)
def test_task_defaults_are_those_of_the_table(name: str) -> None:
    task = task_config(name)
    recipe = task.recipe
    facts = (task.labels, task.labels_in_files, task.metrics, task.best_metric)
    assert (*facts, recipe.batch_sequences, recipe.peak_learning_rate, recipe.num_epochs) == TABLE[name]
    assert task.name == name
    assert task.kind == KINDS.get(name, "tagging" if name == "tagging" else "sequence")
    assert task.max_seq_length == LENGTHS.get(name, 128)
    assert (task.spans is not None) == (task.kind == "spans")
    assert (task.generation is not None) == (task.kind == "generation")
    assert task.is_regression == (name in ("stsb", "regression"))
    assert task.needs_pair == (name in ("mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli", "ax", "minimal_pairs"))


HUB = {
    "mrpc": ("nyu-mll/glue", "mrpc", "validation", None),
    "mnli": ("nyu-mll/glue", "mnli", "validation_matched", "validation_mismatched"),
    "ax": ("nyu-mll/glue", "ax", None, None),
    "squad1": ("rajpurkar/squad", None, "validation", None),
    "squad2": ("rajpurkar/squad_v2", None, "validation", None),
    "conll2003": ("lhoestq/conll2003", None, "validation", None),
    "swag": ("allenai/swag", "regular", "validation", None),
    "pos": (None, None, "validation", None),
}


@pytest.mark.parametrize("name", HUB)
def test_names_on_the_hub(name: str) -> None:
    hub = task_config(name).hub
    assert (hub.path, hub.name, hub.dev, hub.dev_mismatched) == HUB[name]


def test_the_numbers_of_squad() -> None:
    spans = task_config("squad2").spans
    assert spans is not None
    numbers = (spans.window_step, spans.max_query_length, spans.n_best, spans.max_answer_length)
    assert numbers == (128, 64, 20, 30)
    assert not spans.is_always_answered
    assert task_config("squad1").spans.is_always_answered  # type: ignore[union-attr]


def test_the_numbers_of_generation() -> None:
    for name, longest in (("generation", 128), ("translation", 64)):
        made = task_config(name).generation
        assert made is not None
        assert (made.max_target_length, made.num_beams, made.length_penalty) == (longest, 4, 1.0)
        assert (made.label_smoothing, made.num_candidates, made.sample) == (0.1, 1, False)
        assert (made.temperature, made.top_k, made.top_p) == (1.0, None, None)


REFUSED = [
    ("sequence", "labels=[a]", "task.labels=['a']: expected at least two"),
    ("sequence", "labels=[a,a]", "task.labels=['a', 'a']: duplicate label"),
    ("sequence", "labels=[a,1]", "labels[1]=1: expected text"),
    ("sequence", "labels=null", "task.labels=null: expected a list, or auto"),
    ("sst2", "labels=[a,b,c]", "task.labels_in_files=['0', '1']: expected one name for each of task.labels=['a', 'b', 'c']"),
    ("stsb", "label_range=[5,0]", "task.label_range=[5.0, 0.0]: expected the smallest and the largest"),
    ("tagging", "labels=regression", "task.labels=regression: tags have names"),
    ("squad1", "spans=null", "task.spans=null: kind=spans"),
    ("tagging", "multi_label=true", "task.multi_label=true: expected kind=sequence with labels by name"),
    ("stsb", "multi_label=true", "task.multi_label=true: expected kind=sequence with labels by name"),
    ("sequence", "label_separator=''", "task.label_separator='': expected a separator"),
    ("mrpc", "columns.text_pair=null", "task.columns.text_pair=null with task.needs_pair=true"),
    ("tagging", "tagging=null", "task.tagging=null: kind=tagging"),
    ("tagging", "tagging.window_overlap=126", "task.tagging.window_overlap=126: expected 0 to 125, less than the 126"),
    ("translation", "generation.num_candidates=5", "task.generation.num_candidates=5: expected 1 to 4"),
    ("translation", "generation.temperature=0.5", "task.generation.temperature=0.5: has no effect without task.generation.sample=true"),
    ("translation", "generation.top_k=3", "task.generation.top_k=3: has no effect without task.generation.sample=true"),
    ("translation", "generation.top_p=0.9", "task.generation.top_p=0.9: has no effect without task.generation.sample=true"),
    ("translation", "generation=null", "task.generation=null: kind=generation needs these settings"),
    ("cola", "format=xls", "format='xls': expected auto or tsv or csv"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "override", "message"), REFUSED)
def test_settings_that_cannot_work(name: str, override: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        task_config(name, f"task.{override}")
    assert message in str(caught.value)


def test_labels_that_are_numbers_are_names() -> None:
    assert task_config("sequence", "task.labels=[0,1,2]").label_names == ("0", "1", "2")
    assert task_config("sequence").label_names == ()


def test_a_data_set_of_a_known_shape_is_one_file(tmp_path: Path) -> None:
    (tmp_path / "task").mkdir()
    text = "defaults: [sequence, _self_]\nname: trec\nformat: label_text\nfiles: {train: train.txt, dev: test.txt}\n"
    (tmp_path / "task" / "trec.yaml").write_text(text)
    task = task_config("trec", directory=str(tmp_path))
    assert (task.name, task.format, task.files.train, task.kind) == ("trec", "label_text", "train.txt", "sequence")


def test_tasks_of_earlier_runs_are_read_unless_they_need_what_there_is_no_more() -> None:
    task = task_config("squad2")
    saved = to_mapping(task)
    saved["spans"] |= {"window_overlap": None, "alignment": "offsets"}
    assert build(TaskConfig, without_retired(saved)) == task
    saved["spans"]["alignment"] = "google"
    with pytest.raises(InputError, match=r"unknown key 'spans\.alignment'"):
        build(TaskConfig, without_retired(saved))
