"""Files that are refused: each in one line, with the file, the line and the field."""

import json
from pathlib import Path
from typing import Any

import pytest
from task_files import SWAG_HEADER, read, write
from test_conll import GERMEVAL, UD
from test_squad import ANSWERS, CONTEXT, QAS

from bertkit.base.errors import InputError

SST = "sentence\tlabel\n"
PAIR = "index\tsentence1\tsentence2\tlabel\n"


def nested(**changes: Any) -> str:
    question = {"id": "q1", "question": "Where?", "answers": ANSWERS[:1], **changes}
    return json.dumps({"data": [{"paragraphs": [{"context": CONTEXT, "qas": [question]}]}]})


# task, file, split, its content, the error after the folder
FAULTS = [
    # where files are, and how they are written
    ("rte", "train.tsv", "dev", PAIR, ": no dev file for task=rte; expected dev.tsv; set task.files.dev="),
    ("sequence", "dev.xls", "dev", "x", "/dev.xls: unknown format (ending '.xls'); set task.format="),
    # tables and JSON
    ("rte", "dev.tsv", "dev", PAIR + "0\ta\tb\t\n", "/dev.tsv:2: label: empty label; expected 'entailment'"),
    ("rte", "dev.tsv", "dev", PAIR + "0\ta\tb\tentailment\tx\n", "/dev.tsv:2: too many cells (5, expected 4: index, sentence1, sentence2, label)"),
    ("rte", "dev.tsv", "dev", PAIR + "0\ta\tentailment\n", "/dev.tsv:2: too few cells (3, expected 4"),
    ("qqp", "dev.tsv", "dev", "id\tquestion1\tquestion2\tis_duplicate\n0\ta\tb\t0\t1\n", "/dev.tsv:2: too many cells (5, expected 4"),
    ("qqp", "test.tsv", "test", "id\tquestion1\tquestion2\n0\ta\n", "/test.tsv:2: too few cells (2, expected 3"),
    ("rte", "dev.tsv", "dev", "index\tsentence1\tsentnce2\tlabel\n", "/dev.tsv:1: no column 'sentence2' (it has: 'index', 'sentence1', 'sentnce2', 'label'); did you mean 'sentnce2'?"),
    ("rte", "dev.tsv", "dev", "index\tsentence1\tsentence2\n0\ta\tb\n", "/dev.tsv:1: no column 'label' (it has: 'index', 'sentence1', 'sentence2'); set task.columns.label= (labels are expected here; a test file has none)"),
    ("mrpc", "dev.tsv", "dev", "Quality\t#1 String\t#2 Sting\n1\ta\tb\n", "/dev.tsv:1: no column '#2 String' or 'sentence2' (it has: 'Quality', '#1 String', '#2 Sting'); did you mean '#2 Sting'?; set task.columns.text_pair="),
    ("mnli", "dev.tsv", "dev", "premise\tlabel\na\tneutral\n", "/dev.tsv:1: no column 'sentence2' or 'hypothesis' (it has: 'premise', 'label'); set task.columns.text_pair="),
    ("rte", "dev.tsv", "dev", "index\tlabel\tsentence1\tsentence2\tlabel\n", "/dev.tsv:1: two columns 'label'"),
    ("rte", "dev.tsv", "dev", PAIR + "7\ta\tb\tentailment\n8\ta\tb\tentailment\n7\tc\td\tentailment\n", "/dev.tsv:4: index '7' is there twice, first at {}/dev.tsv:2"),
    ("rte", "dev.tsv", "dev", b"index\tsentence1\tsentence2\tlabel\n0\tGr\xfc\xdfe\tb\tentailment\n", "/dev.tsv:2: not UTF-8 (byte 0xfc at column 5); convert the file to UTF-8"),
    ("rte", "dev.tsv", "dev", "a\tb\0\n", "/dev.tsv:1: not text (a zero byte at column 4); remove the file, or convert it to UTF-8"),
    ("rte", "dev.tsv", "dev", "", "/dev.tsv:1: the file is empty"),
    ("rte", "dev.tsv", "dev", PAIR, "/dev.tsv (tsv): no examples"),
    ("sequence", "dev.csv", "dev", "text;label\na, b;x\n", "/dev.csv:1: no column 'text' or 'sentence' or 'sentence1' (it has: 'text;label'); its cells look parted by ';': write the file with commas; set task.columns.text="),
    ("sequence", "dev.csv", "dev", "text\tlabel\na\tx\n", "/dev.csv:1: no column 'text' or 'sentence' or 'sentence1' (it has: 'text\\tlabel'); its cells look parted by '\\t': set task.format=tsv"),
    ("sequence", "dev.jsonl", "dev", '{"text": "a", "label": null}\n', "/dev.jsonl:1: label: empty label; expected a label"),
    ("sequence", "dev.jsonl", "dev", '{"text": "a", "label": "x"}\n{"text": "a"}\n', "/dev.jsonl:2: no field 'label' (it has: 'text'); add it"),
    ("sequence", "dev.jsonl", "dev", '{"text": 5, "label": "x"}\n', "/dev.jsonl:1: field 'text' is int, expected text"),
    ("sequence", "dev.jsonl", "dev", '{"text": "a", "label": "x"}\n{"text": \n', "/dev.jsonl:2: not JSON ("),
    ("sequence", "dev.jsonl", "dev", '"text"\n', "/dev.jsonl:1: str, expected an object with named fields"),
    ("sequence", "dev.json", "dev", '[{"text": "a", "label": "x"},\n\n {"text": }]', "/dev.json:3: not JSON ("),
    ("sequence", "dev.csv", "dev", 'text,label\na,"x"\nb,"y\n', "/dev.csv:3: not CSV ("),
    ("sequence", "dev.csv", "dev", 'text,label\n"a\nb",x\nc,x,y\n', "/dev.csv:4: too many cells (3, expected 2: text, label)"),
    ("sequence", "dev.conllu", "dev", "x", "/dev.conllu: format conllu is for tags, not for kind=sequence"),
    ("sequence", "dev.parquet", "dev", "x", "/dev.parquet: not readable as parquet ("),
    ("swag", "val.csv", "dev", SWAG_HEADER.replace("ending3", "ending4"), "/val.csv:1: no column 'ending3' (it has: ''"),
    # labels and ids
    ("sst2", "dev.tsv", "dev", SST + "a\t0\nb\t2\n", "/dev.tsv:3: label: unknown label '2'; expected 'negative' or 'positive' or '0' or '1'; correct it"),
    ("rte", "dev.tsv", "dev", PAIR + "0\ta\tb\tEntailment\n", "/dev.tsv:2: label: unknown label 'Entailment'; expected 'entailment' or"),
    ("stsb", "dev.tsv", "dev", "sentence1\tsentence2\tscore\na\tb\t5.1\n", "/dev.tsv:2: score: label '5.1'; expected a number from 0 to 5"),
    ("stsb", "dev.tsv", "dev", "sentence1\tsentence2\tscore\na\tb\tnan\n", "/dev.tsv:2: score: label 'nan'; expected a number from 0 to 5"),
    ("sequence", "dev.tsv", "dev", "text\tlabel\na\t1\nb\tgood\n", "/dev.tsv:3: label: mixed label types: 'good' is text, but '1' at {}/dev.tsv:2 is a number; write all alike, or set task.labels="),
    ("sequence", "dev.jsonl", "dev", '{"text": "a", "label": 1}\n\n{"text": "b", "label": "1"}\n', "/dev.jsonl:3: label: mixed label types: '1' is text, but 1 at {}/dev.jsonl:1 is a number"),
    ("sequence", "dev.json", "dev", '[{"text": "a", "label": 1},\n {"text": "b", "label": true}]', "/dev.json:2: label: mixed label types: True is true or false, but 1"),
    ("sequence", "dev.jsonl", "dev", '{"text": "a", "label": ["x"]}\n', "/dev.jsonl:1: label: the label is list"),
    ("swag", "val.csv", "dev", SWAG_HEADER + "0,a,1,x,s,S,gold,a,b,c,d,4\n", "/val.csv:2: label '4'; expected the number of the right ending, 0 to 3"),
    ("swag", "val.csv", "dev", SWAG_HEADER + "0,a,1,x,s,S,gold,a,b,c,d,\n", "/val.csv:2: label ''; expected the number"),
    # columns of words, and lists of them
    ("tagging", "dev.tsv", "dev", GERMEVAL, "/dev.tsv:2: too many cells (4, expected 3); set task.columns.words=1 if column 0 numbers the words"),
    ("conll2003", "eng.testa", "dev", "a NN B-PER\nb NN B-\n", "/eng.testa:2: tag 'B-' does not parse; expected O, or B-, I-"),
    ("conll2003", "eng.testa", "dev", "a NN O\nb NN PER\nc NN B-PER\n", "/eng.testa:2: tag 'PER' does not parse"),
    ("conll2003", "eng.testa", "dev", "a NN B-CAR\n", "/eng.testa:1: tag: unknown label 'B-CAR'; expected 'O' or 'B-PER'"),
    ("conll2003", "eng.testa", "dev", "a NN O\nb O\n", "/eng.testa:2: too few cells (2, expected 3)"),
    ("conll2003", "eng.testa", "dev", "a\tNN\tO\nb\tNN\t\n", "/eng.testa:2: empty tag; correct the line"),
    ("conll2003", "eng.testa", "dev", "a\tNN\tO\n\tNN\tO\n", "/eng.testa:2: empty word"),
    ("conll2003", "eng.testa", "dev", "a\nb\n", "/eng.testa:1: no tags; expected one for each word here (a test file has none)"),
    ("tagging", "dev.conll", "dev", "a O\nb B-\n", "/dev.conll:2: tag 'B-' does not parse"),
    ("tagging", "dev.jsonl", "dev", '{"tokens": ["a", "b"], "tags": ["O"]}\n', "/dev.jsonl:1: 2 tokens but 1 tags; expected a tag for each word"),
    ("tagging", "dev.jsonl", "dev", '{"tokens": ["a", ""], "tags": ["O", "O"]}\n', "/dev.jsonl:1: field 'tokens' has an empty word"),
    ("tagging", "dev.jsonl", "dev", '{"tokens": ["a", "b"], "tags": ["O", 1]}\n', "/dev.jsonl:1: mixed types of tags"),
    ("pos", "x-ud-dev.conllu", "dev", "1\ta\ta\tNOUN\n", "/x-ud-dev.conllu:1: too few cells (4, expected 10)"),
    ("pos", "x-ud-dev.conllu", "dev", UD.replace("AUX", "_"), "/x-ud-dev.conllu:4: tag: unknown label '_'; expected 'ADJ' or"),
    ("pos", "x-ud-dev.conllu", "dev", UD + "\n" + UD, "/x-ud-dev.conllu:19: id 's1' is there twice, first at {}/x-ud-dev.conllu:4"),
    # questions
    ("squad1", "dev-v1.1.json", "dev", nested(answers=[{"text": "France", "answer_start": 16}]), "/dev-v1.1.json:1: question 'q1': answer 'France' is not in its context at answer_start=16 (there is 'rance.'); correct it"),
    ("squad1", "dev-v1.1.json", "dev", nested(answers=[{"text": "é", "answer_start": -8}]), "/dev-v1.1.json:1: question 'q1': answer 'é' is not in its context at answer_start=-8"),
    ("squad1", "dev-v1.1.json", "dev", nested(answers=[{"text": "France", "answer_start": "15"}]), "/dev-v1.1.json:1: question 'q1': answer_start '15' of answer 'France'; expected a whole number"),
    ("squad1", "dev-v1.1.json", "dev", nested(answers=[{"text": "", "answer_start": 3}]), "/dev-v1.1.json:1: question 'q1': empty answer"),
    ("squad1", "dev-v1.1.json", "dev", nested(answers=7), "/dev-v1.1.json:1: question 'q1': field 'answers' holds no answers"),
    ("squad1", "dev-v1.1.json", "dev", nested(answers=[]), "/dev-v1.1.json:1: question 'q1': empty answers, but task=squad1 has one for every question; try task=squad2"),
    ("squad1", "dev-v1.1.json", "dev", nested(answers=None), "/dev-v1.1.json:1: question 'q1': no answers; they are expected here"),
    ("squad2", "dev-v2.0.json", "dev", json.dumps({"data": [{"paragraphs": [{"context": CONTEXT, "qas": [QAS[0], QAS[0]]}]}]}, indent=1), "/dev-v2.0.json:24: id 'q1' is there twice, first at {}/dev-v2.0.json:9"),
    ("squad2", "dev-v2.0.json", "dev", '{"data": [{"paragraphs": [{"qas": []}]}]}', "/dev-v2.0.json: data[0].paragraphs[0]: no field 'context'"),
    ("squad2", "dev-v2.0.json", "dev", '{"data": [{"paragraphs": 3}]}', "/dev-v2.0.json: data[0]: no list 'paragraphs'"),
    ("spans", "dev.jsonl", "dev", '{"question": "a", "context": "b", "answer": "c"}', "/dev.jsonl:1: question '0': answer 'c' is not in its context; correct it"),
    # texts that are made of texts
    ("translation", "train.tsv", "train", "en\tde\nx\ty\n", "/train.tsv:1: no column 'source' or 'src' (it has: 'en', 'de'); set task.columns.source="),
    ("translation", "train.tsv", "train", "source\nx\n", "/train.tsv:1: no column 'target' or 'tgt' (it has: 'source'); set task.columns.target="),
    ("translation", "train.jsonl", "train", '{"source": "x", "target": 3}\n', "/train.jsonl:1: field 'target' is int, expected text"),
    ("translation", "train.jsonl", "train", '{"source": "x", "target": null}\n', "/train.jsonl:1: field 'target' is NoneType, expected text"),
    ("translation", "train.jsonl", "train", '{"source": "x", "target": "y"}\n{"source": "x"}\n', "/train.jsonl:2: no field 'target'"),
]  # fmt: skip


@pytest.mark.parametrize(("task", "name", "split", "text", "message"), FAULTS)
def test_faults(tmp_path: Path, task: str, name: str, split: str, text: str | bytes, message: str) -> None:
    write(tmp_path, name, text)
    with pytest.raises(InputError) as caught:
        read(tmp_path, task, split)
    assert str(caught.value).startswith(f"{tmp_path}{message.format(tmp_path)}")
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
