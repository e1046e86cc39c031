"""Real files in their official layouts: how many examples, labels and warnings they have."""

import re
import time

import pytest
from conftest import real_data
from task_configs import task_config

from bertkit.base.errors import InputError
from bertkit.tasks.reading.readers import read_examples
from bertkit.tasks.reading.source import SplitExamples
from bertkit.tasks.sequence import SequenceExample
from bertkit.tasks.spans.examples import SpanExample
from bertkit.tasks.words import TaggingExample


def read(folder: str, task: str, split: str, *overrides: str) -> SplitExamples:
    directory = real_data(*folder.split("/"))
    return read_examples(task_config(task, *(f"task.{text}" for text in overrides)), str(directory), split)


# task, split, rows, rows of each label in their order, the first text
GLUE = [
    ("cola", "train", 5909, (1749, 4160), "Our friends won't buy this analysis, let alone the next one we propose."),
    ("cola", "dev", 749, (237, 512), "The weights made the rope stretch over the pulley."),
    ("cola", "test", 1063, (), "Bill whistled past the house."),
    ("sst2", "train", 47109, (20822, 26287), "contains no wit , only labored gags "),
    ("sst2", "dev", 617, (305, 312), "unflinchingly bleak and desperate "),
    ("sst2", "test", 1821, (), "uneasy mishmash of styles and genres ."),
    ("mrpc", "train", 2546, (825, 1721), None),
    ("mrpc", "dev", 274, (89, 185), None),
    ("mrpc", "test", 1725, (), None),
    ("qqp", "train", 6313, (4071, 2242), "Is Rolex a non-profit company? And if so, why?"),
    ("qqp", "dev", 708, (457, 251), None),
    ("mnli", "train", 6295, (2153, 2054, 2088), None),
    ("mnli", "dev", 709, (258, 220, 231), "Salt kept the town fed."),
    ("qnli", "train", 7027, (3512, 3515), None),
    ("qnli", "dev", 3863, (1903, 1960), "What came into force after the new constitution was herald?"),
    ("wnli", "train", 443, (227, 216), None),
    ("wnli", "dev", 49, (27, 22), None),
    ("wnli", "test", 146, (), None),
    ("ax", "test", 1104, (), "The cat sat on the mat."),
]


@pytest.mark.parametrize(("task", "split", "num_rows", "counts", "first"), GLUE)
def test_glue_files_have_published_counts(
    task: str, split: str, num_rows: int, counts: tuple[int, ...], first: str | None
) -> None:
    source = read("glue", task, split)
    assert len(source.examples) == num_rows
    labels = [example.label for example in source.examples if isinstance(example, SequenceExample)]
    assert tuple(labels.count(name) for name in source.labels if counts) == counts
    assert labels.count(None) == (0 if counts else num_rows)
    assert source.warnings == ()
    assert first is None or source.examples[0].text == first  # type: ignore[union-attr]
    is_pair = task not in ("cola", "sst2")
    assert all((example.text_pair is not None) == is_pair for example in source.examples)  # type: ignore[union-attr]


def test_rows_of_the_original_files() -> None:
    assert len(read("glue", "mnli", "train", "files.train=train_original_rows.tsv").examples) == 318
    assert len(read("glue", "qqp", "train", "files.train=train_original_rows.tsv").examples) == 224


def test_reading_is_fast() -> None:
    start = time.process_time()
    read("glue", "sst2", "train")
    assert time.process_time() - start < 2  # 0.4 s on one core of 2026


# folder, task, split, overrides, sentences, words, description's end, warnings
TAGS = [
    ("conll2003", "conll2003", "train", (), 9952, 143128, "IOB1 read as IOB2)", 1),
    ("conll2003", "conll2003", "dev", (), 2311, 36402, "IOB1 read as IOB2)", 0),
    ("conll2003", "conll2003", "train", ("documents=true",), 664, 143128, "documents, IOB1 read as IOB2)", 1),
    ("conll2002_es", "tagging", "dev", ("files.dev=esp.testa",), 1915, 52923, "IOB2)", 1),
    ("germeval2014", "tagging", "dev", ("columns.words=1", "columns.tags=2"), 2200, 41653, "IOB2)", 0),
    ("ud_english_ewt", "pos", "dev", (), 1243, 16210, "(conllu, sentences)", 0),
    ("ud_english_ewt", "pos", "test", (), 1452, 17846, "(conllu, sentences)", 0),
    ("ud_english_ewt", "pos", "test", ("documents=true",), 223, 17846, "(conllu, documents)", 0),
    ("ud_english_ewt", "tagging", "dev", ("columns.tags=4",), 1243, 16210, "(conllu, sentences)", 0),
    ("ud_chinese_gsdsimp", "pos", "dev", (), 500, 12663, "(conllu, sentences)", 1),
    ("fixtures/allennlp/tagging", "tagging", "dev", ("files.dev=conll2000.txt",), 2, 64, "IOB2)", 0),
    ("fixtures/allennlp/tagging", "conll2003", "dev", ("files.dev=conll2003.txt",), 2, 14, "IOB1 read as IOB2)", 1),
    ("fixtures/hf/conll", "tagging", "dev", ("files.dev=sample.json",), 10, 195, "IOB2)", 0),
]  # fmt: skip


@pytest.mark.parametrize(("folder", "task", "split", "overrides", "num", "num_words", "end", "num_warnings"), TAGS)
def test_tagging_files_have_published_counts(
    folder: str, task: str, split: str, overrides: tuple, num: int, num_words: int, end: str, num_warnings: int
) -> None:
    source = read(folder, task, split, *overrides)
    assert len(source.examples) == num
    assert all(isinstance(example, TaggingExample) and example.tags is not None for example in source.examples)
    assert sum(len(example.words) for example in source.examples) == num_words  # type: ignore[union-attr]
    assert {tag for example in source.examples for tag in example.tags} <= set(source.labels)  # type: ignore[union-attr]
    assert source.description.endswith(end)
    assert len(source.warnings) == num_warnings


@pytest.mark.parametrize("documents", ["false", "true"])
def test_names_of_conll2003(documents: str) -> None:
    source = read("conll2003", "conll2003", "dev", f"documents={documents}")
    begins = [tag for example in source.examples for tag in example.tags if tag.startswith("B-")]  # type: ignore[union-attr]
    counts = {kind: begins.count(kind) for kind in sorted(set(begins))}
    assert counts == {"B-LOC": 1312, "B-MISC": 623, "B-ORG": 1028, "B-PER": 1362}


SQUAD = [
    ("squad", "squad1", "dev-v1.1.public.json", 6671, 0),
    ("squad", "squad2", "dev-v2.0.public.json", 8876, 4421),
    *(("xquad", "squad1", f"xquad.{language}.json", 754, 0) for language in ("ar", "en", "es", "ru", "tr", "vi")),
    ("fixtures/hf/SQUAD", "squad2", "sample.json", 7, 3),
    ("fixtures/allennlp/rc", "squad1", "squad.json", 5, 0),
]


@pytest.mark.parametrize(("folder", "task", "name", "num_questions", "num_unanswerable"), SQUAD)
def test_squad_files_have_published_counts(
    folder: str, task: str, name: str, num_questions: int, num_unanswerable: int
) -> None:
    source = read(folder, task, "dev", f"files.dev={name}")
    questions = [example for example in source.examples if isinstance(example, SpanExample)]
    assert len(questions) == num_questions
    assert sum(question.answers == () for question in questions) == num_unanswerable
    for question in questions:
        for answer in question.answers or ():
            assert question.context[answer.start : answer.start + len(answer.text)] == answer.text
    assert source.warnings == ()


def test_public_parts_are_found_by_the_names_of_the_whole() -> None:
    assert len(read("squad", "squad1", "dev").examples) == 6671
    assert len(read("squad", "squad2", "dev").examples) == 8876


def test_duplicate_question_id_is_located() -> None:
    message = r"squad2\.json:29: .*5733be284776f41900661182.*first at .*:18"
    source = read("fixtures/allennlp/rc", "squad2", "dev", "files.dev=squad2.json")
    assert re.search(f"{message}; the ids are the numbers of the rows instead", source.warnings[0])
    assert [example.id for example in source.examples] == [str(number) for number in range(len(source.examples))]
    with pytest.raises(InputError, match=message):
        read("fixtures/allennlp/rc", "squad2", "dev", "files.dev=squad2.json", "columns.id=id")


# folder, file, overrides, rows, labels
OWN = [
    ("sst-5", "train.tsv", (), 5408, 5),
    ("sst-5", "dev.tsv", (), 592, 5),
    ("trec", "train.txt", ("format=label_text",), 3816, 50),
    ("trec", "test.txt", ("format=label_text",), 352, 39),
    ("fixtures/hf/MRPC", "train.csv", (), 6, 2),
    ("fixtures/allennlp/pair_classification", "snli.jsonl", ("columns.label=gold_label",), 3, 3),
]


@pytest.mark.parametrize(("folder", "name", "overrides", "num_rows", "num_labels"), OWN)
def test_other_datasets_have_published_counts(
    folder: str, name: str, overrides: tuple[str, ...], num_rows: int, num_labels: int
) -> None:
    source = read(folder, "sequence", "train", f"files.train={name}", *overrides)
    assert (len(source.examples), len(source.labels)) == (num_rows, num_labels)


def test_swag_as_json_lines() -> None:
    source = read("fixtures/hf/swag", "swag", "train", "files.train=sample.json")
    assert [example.label for example in source.examples] == [0, 3, 1, 3, 0, 3, 0, 1, 3, 3]  # type: ignore[union-attr]
    assert source.examples[0].endings[1] == "A drum line has heard approaching them."  # type: ignore[union-attr]
