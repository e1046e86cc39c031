"""Files as people publish them, and as other tools write them: what is read is what is meant, or the file is refused."""

import csv
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from task_configs import task_config
from task_files import read, rows, tagged, write

from bertkit.base.errors import InputError
from bertkit.settings.reading.words import to_words
from bertkit.tasks.reading.kinds import infer_task

CONTEXT = "Ann came first. Ann came second."
QUESTION = {"context": CONTEXT, "question": "Who was second?", "answer_text": "Ann"}


@pytest.mark.parametrize("start", [16, 16.0])
def test_an_answer_begins_where_its_row_says(tmp_path: Path, start: float) -> None:
    write(tmp_path, "train.jsonl", json.dumps({**QUESTION, "answer_start": start}))
    write(
        tmp_path,
        "dev.csv",
        f"context,question,answer_text,answer_start\n{CONTEXT},Who?,Ann,{start}\n{CONTEXT},When?,,\n",
    )
    write(tmp_path, "test.jsonl", json.dumps({**QUESTION, "answer_text": ["Ann"], "answer_start": [start]}))
    starts = [
        [[answer.start for answer in one.answers or ()] for one in read(tmp_path, "spans", split).examples]
        for split in ("train", "dev", "test")
    ]
    assert starts == [[[16]], [[16], []], [[16]]]
    write(tmp_path, "train.jsonl", json.dumps({**QUESTION, "answer_start": 16.5}))
    with pytest.raises(InputError, match="expected a whole number of characters"):
        read(tmp_path, "spans", "train")


@pytest.mark.parametrize(("yes", "no"), [("True", "False"), ("1", "0"), ("1.0", ""), ("true", "false")])
def test_a_question_without_an_answer_has_none_in_a_table(tmp_path: Path, yes: str, no: str) -> None:
    """Its answers are plausible and wrong."""
    header = "context,question,answer_text,answer_start,is_impossible\n"
    write(tmp_path, "dev.csv", f"{header}{CONTEXT},Who?,Ann,16,{no}\n{CONTEXT},When?,Ann,0,{yes}\n")
    source = read(tmp_path, "spans", "dev")
    assert [[answer.start for answer in one.answers or ()] for one in source.examples] == [[16], []]
    place = f"{tmp_path}/dev.csv: 1 question with is_impossible and an answer, the first at {tmp_path}/dev.csv:3: question '1'"
    assert source.warnings == (f"{place}; they count as questions without an answer",)
    for none in ("[]", "\"{'text': [], 'answer_start': []}\""):  # as pandas writes them
        write(tmp_path, "dev.csv", f"{header}{CONTEXT},Who?,Ann,16,{no}\n{CONTEXT},When?,{none},,{yes}\n")
        assert read(tmp_path, "spans", "dev").warnings == ()
    for value, expected in ((1, []), ("true", []), (0, [16]), (None, [16])):
        row = {**QUESTION, "answer_start": 16, "is_impossible": value}
        write(tmp_path, "train.jsonl", json.dumps(row))
        (example,) = read(tmp_path, "spans", "train").examples
        assert [answer.start for answer in example.answers or ()] == expected


def test_an_answer_without_a_place_is_a_whole_word(tmp_path: Path) -> None:
    contexts = {"Anna met Ann. Ann left.": 9, "Annas met.": 0, "Bob met Ann.": 8}
    lines = [json.dumps({**QUESTION, "context": context}) for context in contexts]
    write(tmp_path, "dev.jsonl", "\n".join(lines))
    source = read(tmp_path, "spans", "dev")
    assert [[answer.start for answer in one.answers or ()] for one in source.examples] == [
        [n] for n in contexts.values()
    ]
    assert source.warnings == (
        f"{tmp_path}/dev.jsonl: 1 question with an answer without answer_start that its context has several times, the first at "
        f"{tmp_path}/dev.jsonl:1: question '0'; the first place is taken, a whole word if there is one",
    )


MULTI_HOT = '{{"text": "a", "labels": {}}}\n{{"text": "b", "labels": {}}}\n'
LABEL_SETS: list[tuple[str, str, tuple[str, ...], Any]] = [  # a file, its content, settings; the labels, or words of the refusal
    ("train.jsonl", MULTI_HOT.format([0.0, 1.0, 1.0], [1.0, 0.0, 0.0]), (), [("1", "2"), ("0",)]),  # as the Trainer takes them
    ("train.jsonl", MULTI_HOT.format("[true, false]", "[false, false]"), ("labels=[joy,fear]",), [("joy",), ()]),
    ("train.jsonl", MULTI_HOT.format([0, 1, 1], [1, 0, 0]), (), "is no list of labels"),
    ("train.jsonl", MULTI_HOT.format([0.0, 1.0], [0.0, 1.0, 1.0]), (), "expected 1.0 or 0.0 for each of 2 labels"),
    ("train.jsonl", MULTI_HOT.format([0.0, 1.0], '["joy"]'), (), "expected 1.0 or 0.0 for each of 2 labels"),
    ("train.jsonl", MULTI_HOT.format('["joy"]', [0.0, 1.0]), (), "expected 1.0 or 0.0 for each of 2 labels"),
    ("train.csv", pd.DataFrame({"text": ["a", "b"], "labels": [["joy", "fear"], []]}).to_csv(index=False), (), [("joy", "fear"), ()]),
    ("train.csv", 'text,labels\na,"[""joy, fear""]"\nb,"[\'a\', ""it\'s""]"\n', (), [("joy, fear",), ("a", "it's")]),
    ("train.csv", "text,labels\na,['joy' 'fear']\n", (), "is no list of labels"),  # of an array of numpy
    ("train.csv", "text,labels\na,\"{'joy', 'fear'}\"\n", (), "is no list of labels"),  # of a set, as pandas writes it
    ("train.csv", "text,labels\na,\"('joy', 'fear')\"\n", (), "is no list of labels"),
    ("train.csv", 'text,labels\na,"{joy,fear}"\n', (), "is no list of labels"),  # of an array, as databases write it
    ("train.csv", 'text,labels\na,"(joy, fear)"\n', (), "is no list of labels"),
    ("train.csv", "text,labels\na,\"{'joy': 1, 'fear': 0}\"\n", (), "is no list of labels"),
    ("train.csv", 'text,labels\na,"1,0"\nb,"1,1"\n', (), "'1,1' is no list of labels"),  # 1 or 0 for each label
    ("train.csv", 'text,labels\na,"(none),joy"\nb,"joy,joy"\n', (), [("(none)", "joy"), ("joy",)]),
    ("train.csv", "text,joy,fear\na,1,0\nb,0,1\n", ("columns.label=[joy,fear]",), "finds 'joy', 'fear'; name one"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "settings", "expected"), LABEL_SETS)
def test_several_labels_in_other_forms(
    tmp_path: Path, name: str, content: str, settings: tuple[str, ...], expected: Any
) -> None:
    write(tmp_path, name, content)
    if isinstance(expected, str):
        with pytest.raises(InputError, match=expected):
            read(tmp_path, "sequence", "train", "multi_label=true", *settings)
    else:
        assert [row[3] for row in rows(read(tmp_path, "sequence", "train", "multi_label=true", *settings))] == expected


@pytest.mark.parametrize("content", [MULTI_HOT.format([0, 1], [1, 0]), MULTI_HOT.format('["b", "a"]', '["a", "b"]')])
def test_the_same_labels_in_another_order_are_one_class(tmp_path: Path, content: str) -> None:
    """Such as 1 or 0 for each of two labels, which look like lists of label numbers."""
    write(tmp_path, "train.jsonl", content)
    (warning,) = read(tmp_path, "sequence", "train", "multi_label=true").warnings
    assert warning.endswith("; nothing can be learned from a single class")


def test_labels_without_an_example_are_counted_where_each_has_its_place(tmp_path: Path) -> None:
    write(tmp_path, "train.jsonl", MULTI_HOT.format([0.0, 1.0, 0.0], [0.0, 0.0, 0.0]))
    assert read(tmp_path, "sequence", "train", "multi_label=true").labels == ("0", "1", "2")


COLUMNS = [  # the labels of a file; the settings that are inferred, or words of the refusal
    (["yes", "no", "no "] * 9, "task=classification"),
    (["yes", "no", "yes, but"] + ["yes", "no"] * 19, "task=classification"),
    (["food;room", "food", "room", "staff;room"] * 3, "task.label_separator=';'"),
    (["['a', 'b']", "['b']", "['c', 'a']", "[]"] * 3, "task.multi_label=true"),
    (["{'a', 'b'}", "{'b'}", "{'c'}"] * 3, "task.multi_label=true"),  # which the reader refuses
    (["4,7", "3,2", "5,1", "2"], "numbers, but also '4,7'; set task=regression for decimal commas, or"),
    (["180,02", "3,20", "5,10", "2"], "task=regression"),
    (["180,02", "3,20", "1.500", "2"], "numbers, but also '180,02'; write numbers as in 1234.5"),
    (
        ["0,5", "1,8", "3", "2,12"],
        "numbers, but also '0,5'; set task=regression for decimal commas, or set task.multi_label=true",
    ),
    (
        ["01,03", "02,04", "03", "00,05"],
        "numbers, but also '01,03'; set task=regression for decimal commas, or set task.multi",
    ),
    (
        ["12,50", "3,99", "7,25", "8"],
        "numbers, but also '12,50'; set task=regression for decimal commas, or set task.multi",
    ),
    (["0,5", "0,05", "-1,5", "2"], "task=regression"),
    (["7,600", "8,100", "12,000"], "numbers, but also '7,600'"),
    (["€ 5", "$7", "5.50 USD"], "numbers, but also '€ 5'"),
    ([*map(str, range(80)), "n/a"], "numbers, but also 'n/a'"),
    (["1", "2", "3", "n/a"] * 4, "task=classification"),
    (["4.0", "5.0", "3.0"] * 9, "task=classification"),
]


@pytest.mark.parametrize(("labels", "expected"), COLUMNS)
def test_labels_are_understood_or_named(tmp_path: Path, labels: list[str], expected: str) -> None:
    path = tmp_path / "train.csv"
    pd.DataFrame({"text": "t", "label": labels}).to_csv(path, index=False)
    task = task_config("sequence", f"task.files.train={path}")
    if expected.startswith("numbers"):
        with pytest.raises(InputError, match=f"column 'label' has {expected.replace('$', '.')}"):
            infer_task(task)
    else:
        settings = infer_task(task).settings
        assert expected in settings
        assert ("task.multi_label=true" in settings) == any(mark in labels[0] for mark in ";[{")


@pytest.mark.parametrize(
    ("in_csv", "from_python", "labels"),
    [("True False", [True, False], ("false", "true")), ("4.0 5", [4.0, 5], ("4", "5"))],
)
def test_a_label_has_one_spelling(tmp_path: Path, in_csv: str, from_python: list[Any], labels: tuple[str, ...]) -> None:
    write(tmp_path, "train.csv", "text,label\n" + "".join(f"t,{label}\n" for label in in_csv.split()))
    write(tmp_path, "dev.jsonl", "".join(json.dumps({"text": "t", "label": label}) + "\n" for label in from_python))
    train = read(tmp_path, "sequence", "train")
    assert train.labels == labels
    for known in (labels, tuple(sorted(in_csv.split()))):  # as earlier versions named them
        dev = read(tmp_path, "sequence", "dev", labels=known)
        assert [known.index(row[3]) for row in rows(dev)] == [labels.index(row[3]) for row in rows(train)]


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
def test_quotes_of_pandas_are_not_part_of_a_text(tmp_path: Path, quoting: Any) -> None:
    texts = ['he said "hi"', '"hi" there', '"', '""', "it's 5\" long", "plain"]
    frame = pd.DataFrame({"text": texts, "label": list("ababab")})
    frame.to_csv(tmp_path / "train.tsv", sep="\t", index=False, quoting=quoting)
    assert [row[1] for row in rows(read(tmp_path, "sequence", "train"))] == texts
    write(tmp_path, "dev.tsv", 'text\tlabel\n"quoted"\ta\n"one" and "two"\tb\n')  # as nobody's library writes them
    assert [row[1] for row in rows(read(tmp_path, "sequence", "dev"))] == ['"quoted"', '"one" and "two"']


def test_benchmarks_keep_their_quotes(tmp_path: Path) -> None:
    """As the datasets of the hub have GLUE's files, which they read without quoting."""
    header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    write(tmp_path, "QQP/dev.tsv", f'{header}1\t2\t3\t"a ""b"" c"\td\t0\n')
    assert rows(read(tmp_path, "qqp", "dev"))[0][1] == '"a ""b"" c"'


SENTENCE = "Sue _ _ B-PER\nran _ _ O\n"
CONLL = [  # the content of a file; its words, or words of the refusal
    (f"# id 0000\tdomain=en\n{SENTENCE}\n# id 0001\tdomain=en\nBob _ _ B-PER\n", [("Sue", "ran"), ("Bob",)]),  # MultiCoNER
    (f"# id 0000 domain=en\n{SENTENCE}", [("Sue", "ran")]),
    ("# O\nSue B-PER\n\u00a0 O\n", [("#", "Sue", "\u00a0")]),
    (f"# made by\tus\n{SENTENCE}", "set \"task.comment='#'\""),
    (f"{SENTENCE}\n# made by\tus\n", "set \"task.comment='#'\""),
]  # fmt: skip


@pytest.mark.parametrize(("content", "expected"), CONLL)
def test_comments_and_white_space_in_conll(tmp_path: Path, content: str, expected: Any) -> None:
    write(tmp_path, "train.txt", content)
    if isinstance(expected, str):
        with pytest.raises(InputError, match=expected):
            read(tmp_path, "tagging", "train")
    else:
        assert [words for words, _ in tagged(read(tmp_path, "tagging", "train"))] == expected


def test_white_space_is_a_word(tmp_path: Path) -> None:
    write(tmp_path, "train.jsonl", json.dumps({"tokens": ["Sue", "\n", "\u00a0"], "tags": ["B-PER", "O", "O"]}))
    assert tagged(read(tmp_path, "tagging", "train")) == [(("Sue", "\n", "\u00a0"), ("B-PER", "O", "O"))]


def test_a_no_break_space_is_part_of_a_word_in_a_cell_too(tmp_path: Path) -> None:
    """As in CoNLL and in a file of words: the same sentence had more words, and other tags, from a table."""
    for name, content in {
        "train.conll": "Sue B-PER\nran O\n10\u00a0km O\n",
        "train.csv": 'words,tags\n" Sue\tran\n10\u00a0km ",B-PER O O\n',
        "train.jsonl": json.dumps({"words": "Sue ran 10\u00a0km", "tags": "B-PER O  O"}),
    }.items():
        write(tmp_path, name, content)
        source = read(tmp_path, "tagging", "train", f"files.train={name}")
        assert tagged(source) == [(("Sue", "ran", "10\u00a0km"), ("B-PER", "O", "O"))]


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ("minilm", "model_dir=sentence-transformers/all-MiniLM-L6-v2"),
        ("runs/a", "model_dir=runs/a"),
        ("tiny", "model=tiny"),
    ],
)
def test_a_model_that_is_no_shape_is_a_directory(value: str, word: str) -> None:
    assert to_words("finetune", [], [("--model", value)]) == [word]


def test_a_row_for_each_word_is_refused(tmp_path: Path) -> None:
    """As in Kaggle's file of named entities: I-PER would begin a phrase in a sentence of its own."""
    words = [{"sentence_id": 1, "words": "Sue", "tags": "B-PER"}, {"sentence_id": 1, "words": "Poe", "tags": "I-PER"}]
    write(tmp_path, "train.jsonl", "".join(json.dumps(row) + "\n" for row in words))
    with pytest.raises(
        InputError, match=r"train\.jsonl:1: every row has a single word; expected a row for each sentence"
    ):
        read(tmp_path, "tagging", "train")
    whole = [{**row, key: [row[key]]} for row in words for key in ("words",)]
    write(tmp_path, "train.jsonl", "".join(json.dumps({**row, "tags": ["B-PER"]}) + "\n" for row in whole))
    assert len(read(tmp_path, "tagging", "train").examples) == 2  # short sentences
