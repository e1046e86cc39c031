"""Files that are refused: each in one line, with the file, the line and the field."""

import json
from pathlib import Path
from typing import Any

import pytest
from task_files import SWAG_HEADER, read, write
from test_conll import GERMEVAL, UD
from test_tables import ANSWERS, CONTEXT

from bertkit.base.errors import InputError

SST = "sentence\tlabel\n"
PAIR = "index\tsentence1\tsentence2\tlabel\n"


def nested(**changes: Any) -> str:
    question = {"id": "q1", "question": "Where?", "answers": ANSWERS[:1], **changes}
    return json.dumps({"data": [{"paragraphs": [{"context": CONTEXT, "qas": [question]}]}]})


# task, file, split, its content; the place below the folder, and the values that the error names
FAULTS = [
    # where files are, and how they are written
    ("rte", "train.tsv", "dev", PAIR, ('', 'task=rte')),
    ("sequence", "dev.xls", "dev", "x", ('/dev.xls', "'.xls'")),
    # tables and JSON
    ("rte", "dev.tsv", "dev", PAIR + "0\ta\tb\t\n", ('/dev.tsv:2: label', "'entailment'")),
    ("rte", "dev.tsv", "dev", PAIR + "0\ta\tb\tentailment\tx\n", ('/dev.tsv:2', '(5, expected 4')),
    ("rte", "dev.tsv", "dev", PAIR + "0\ta\tentailment\n", ('/dev.tsv:2', '(3, expected 4')),
    ("qqp", "dev.tsv", "dev", "id\tquestion1\tquestion2\tis_duplicate\n0\ta\tb\t0\t1\n", ('/dev.tsv:2', '(5, expected 4')),
    ("qqp", "test.tsv", "test", "id\tquestion1\tquestion2\n0\ta\n", ('/test.tsv:2', '(2, expected 3')),
    ("rte", "dev.tsv", "dev", "index\tsentence1\tsentnce2\tlabel\n", ('/dev.tsv:1', "'sentence2'", "mean 'sentnce2'")),
    ("rte", "dev.tsv", "dev", "index\tsentence1\tsentence2\n0\ta\tb\n", ('/dev.tsv:1', "'label'", "'index'", "'sentence1'")),
    ("sequence", "dev.csv", "dev", "Sentiment,Review_Text\n1,a\n", ("/dev.csv:1", "mean 'Review_Text'")),
    ("mrpc", "dev.tsv", "dev", "Quality\t#1 String\t#2 Sting\n1\ta\tb\n", ('/dev.tsv:1', "'#2 String'", "'sentence2'", "'Quality'")),
    ("mnli", "dev.tsv", "dev", "premise\tlabel\na\tneutral\n", ('/dev.tsv:1', "'sentence2'", "'hypothesis'", "'premise'")),
    ("rte", "dev.tsv", "dev", "index\tlabel\tsentence1\tsentence2\tlabel\n", ('/dev.tsv:1', "'label'")),
    ("rte", "dev.tsv", "dev", b"index\tsentence1\tsentence2\tlabel\n0\tGr\xfc\xdfe\tb\tentailment\n", ('/dev.tsv:2', '0xfc at column 5')),
    ("rte", "dev.tsv", "dev", "a\tb\0\n", ('/dev.tsv:1', 'column 4')),
    ("rte", "dev.tsv", "dev", "", ('/dev.tsv:1', 'the file is empty')),
    ("rte", "dev.tsv", "dev", PAIR, ('/dev.tsv (tsv)', 'no examples')),
    ("sequence", "dev.csv", "dev", "text,label\ra,x\rb,y\r", ('/dev.csv:1', 'carriage returns alone', r"tr '\r' '\n'")),
    ("sequence", "dev.tsv", "dev", "text\tlabel\ra\tx\rb\ty", ('/dev.tsv:1', 'carriage returns alone')),
    ("conll2003", "eng.testa", "dev", "a NN O\rb NN O\r", ('/eng.testa:1', 'carriage returns alone')),
    ("sequence", "dev.csv", "dev", "txt;lab\na, b;x\n", ('/dev.csv:1', "'sentence1'", "(it has: 'txt', 'lab')")),
    ("sequence", "dev.csv", "dev", "txt\tlab\na\tx\n", ('/dev.csv:1', "'sentence1'", "(it has: 'txt', 'lab')")),
    ("sequence", "dev.tsv", "dev", "txt,lab\na,x\n", ('/dev.tsv:1', "'sentence1'", 'task.format=csv')),
    ("sequence", "dev.jsonl", "dev", '{"text": "a", "label": null}\n', ('/dev.jsonl:1: label', 'empty label')),
    ("sequence", "dev.jsonl", "dev", '{"text": "a", "label": "x"}\n{"text": "a"}\n', ('/dev.jsonl:2', "'label'", "'text'")),
    ("sequence", "dev.jsonl", "dev", '{"text": 5, "label": "x"}\n', ('/dev.jsonl:1', "'text'")),
    ("sequence", "dev.jsonl", "dev", '{"text": "a", "label": "x"}\n{"text": \n', ('/dev.jsonl:2', 'not JSON')),
    ("sequence", "dev.jsonl", "dev", '{"text": "a", "label": "x", "label": "y"}\n', ('/dev.jsonl:1', "two keys 'label' in an object")),
    ("sequence", "dev.json", "dev", '[{"text": "a", "label": "x"},\n {"text": "b", "text": "c", "label": "x"}]', ('/dev.json:2', "two keys 'text' in an object")),
    ("sequence", "dev.jsonl", "dev", '"text"\n', ('/dev.jsonl:1', 'str')),
    ("sequence", "dev.json", "dev", '[{"text": "a", "label": "x"},\n\n {"text": }]', ('/dev.json:3', 'not JSON')),
    ("sequence", "dev.csv", "dev", 'text,label\na,"x"\nb,"y\n', ('/dev.csv:3', 'not CSV')),
    ("sequence", "dev.csv", "dev", 'text,label\n"a\nb",x\nc,x,y\n', ('/dev.csv:4', '(3, expected 2')),
    ("sequence", "dev.conllu", "dev", "x", ('/dev.conllu', 'kind=sequence')),
    ("sequence", "dev.parquet", "dev", "x", ('/dev.parquet', 'not readable as parquet')),
    ("swag", "val.csv", "dev", SWAG_HEADER.replace("ending3", "ending4"), ('/val.csv:1', "'ending3'", "'ending4'")),
    # columns, labels and values without end
    ("sequence", "dev.csv", "dev", ",".join(f"c{n}" for n in range(50_008)) + "\n", ('/dev.csv:1', "'c1'", "and 50,000 more")),
    ("sequence", "dev.csv", "dev", "text,label\n" + "a,x\n" * 9 + "b" * 999 + "," * 50_001, ('/dev.csv:11', "(50002, expected 2: 'text', 'label')")),
    ("rte", "dev.tsv", "dev", PAIR + "0\ta\tb\t" + "x" * 1_000_000, ('/dev.tsv:2: label', "'xxx", "'not_entailment'")),
    ("squad1", "dev-v1.1.json", "dev", nested(answers=[{"text": "x" * 99_999, "answer_start": 3}]), ("/dev-v1.1.json:1: question 'q1'", "answer_start=3")),
    # labels and ids
    ("sst2", "dev.tsv", "dev", SST + "a\t0\nb\t2\n", ('/dev.tsv:3: label', "'2'", "'negative'", "'positive'")),
    ("rte", "dev.tsv", "dev", PAIR + "0\ta\tb\tEntailment\n", ('/dev.tsv:2: label', "'Entailment'", "'entailment'")),
    ("stsb", "dev.tsv", "dev", "sentence1\tsentence2\tscore\na\tb\t5.1\n", ('/dev.tsv:2: score', "'5.1'")),
    ("stsb", "dev.tsv", "dev", "sentence1\tsentence2\tscore\na\tb\tnan\n", ('/dev.tsv:2: score', "'nan'")),
    ("sequence", "dev.tsv", "dev", "text\tlabel\na\t1\nb\tgood\n", ('/dev.tsv:3: label', "'good'", "'1' at {}/dev.tsv:2")),
    ("sequence", "dev.jsonl", "dev", '{"text": "a", "label": 1}\n\n{"text": "b", "label": "1"}\n', ('/dev.jsonl:3: label', "'1'", '{}/dev.jsonl:1')),
    ("sequence", "dev.json", "dev", '[{"text": "a", "label": 1},\n {"text": "b", "label": true}]', ('/dev.json:2: label', 'mixed', 'True')),
    ("sequence", "dev.jsonl", "dev", '{"text": "a", "label": ["x"]}\n', ('/dev.jsonl:1: label', 'list')),
    ("swag", "val.csv", "dev", SWAG_HEADER + "0,a,1,x,s,S,gold,a,b,c,d,4\n", ('/val.csv:2', "'4'")),
    ("swag", "val.csv", "dev", SWAG_HEADER + "0,a,1,x,s,S,gold,a,b,c,d,\n", ('/val.csv:2', "''")),
    # columns of words, and lists of them
    ("tagging", "dev.tsv", "dev", GERMEVAL.replace("]\n", "]\t\n"), ("/dev.tsv:1", "empty tag", "comment", "task.columns.words=1")),
    ("tagging", "dev.tsv", "dev", GERMEVAL, ('/dev.tsv:2', '(4, expected 3', 'task.columns.words=1', 'column 0')),
    ("conll2003", "eng.testa", "dev", "a NN B-PER\nb NN B-\n", ('/eng.testa:2', "'B-'")),
    ("conll2003", "eng.testa", "dev", "a NN O\nb NN PER\nc NN B-PER\n", ('/eng.testa:2', "'PER'")),
    ("conll2003", "eng.testa", "dev", "a NN B-CAR\n", ('/eng.testa:1: tag', "'B-CAR'", "'O'", "'B-PER'")),
    ("conll2003", "eng.testa", "dev", "a NN O\nb O\n", ('/eng.testa:2', '(2, expected 3')),
    ("conll2003", "eng.testa", "dev", "a\tNN\tO\nb\tNN\t\n", ('/eng.testa:2', 'empty tag')),
    ("conll2003", "eng.testa", "dev", "a\tNN\tO\n\tNN\tO\n", ('/eng.testa:2', 'empty word')),
    ("conll2003", "eng.testa", "dev", "a\nb\n", ('/eng.testa:1', 'no tags')),
    ("tagging", "dev.conll", "dev", "a O\nb B-\n", ('/dev.conll:2', "'B-'")),
    ("tagging", "dev.jsonl", "dev", '{"tokens": ["a", "b"], "tags": ["O"]}\n', ('/dev.jsonl:1', '2 tokens but 1 tags')),
    ("tagging", "dev.jsonl", "dev", '{"tokens": ["a", ""], "tags": ["O", "O"]}\n', ('/dev.jsonl:1', "'tokens'")),
    ("tagging", "dev.jsonl", "dev", '{"tokens": ["a", "b"], "tags": ["O", 1]}\n', ('/dev.jsonl:1', 'different types')),
    ("tagging", "dev.csv", "dev", "tokens,tags\n\"['a' 'b']\",O O\n", ('/dev.csv:2', "'tokens'", "a list with commas")),
    ("tagging", "dev.csv", "dev", "tokens,tags\na b,[0 1]\n", ('/dev.csv:2', "'tags'", "a list with commas")),
    ("pos", "x-ud-dev.conllu", "dev", "1\ta\ta\tNOUN\n", ('/x-ud-dev.conllu:1', '(4, expected 10')),
    ("pos", "x-ud-dev.conllu", "dev", UD.replace("AUX", "_"), ('/x-ud-dev.conllu:4: tag', "'_'", "'ADJ'")),
    # questions
    ("squad1", "dev-v1.1.json", "dev", nested(answers=[{"text": "France", "answer_start": 16}]), ("/dev-v1.1.json:1: question 'q1'", "'France'", 'answer_start=16', "'rance.'")),
    ("squad1", "dev-v1.1.json", "dev", nested(answers=[{"text": "é", "answer_start": -8}]), ("/dev-v1.1.json:1: question 'q1'", "'é'", 'answer_start=-8')),
    ("squad1", "dev-v1.1.json", "dev", nested(answers=[{"text": "France", "answer_start": "15"}]), ("/dev-v1.1.json:1: question 'q1'", "'15'", "'France'")),
    ("squad1", "dev-v1.1.json", "dev", nested(answers=[{"text": "", "answer_start": 3}]), ("/dev-v1.1.json:1: question 'q1'", 'empty answer')),
    ("squad1", "dev-v1.1.json", "dev", nested(answers=7), ("/dev-v1.1.json:1: question 'q1'", "'answers'")),
    ("squad1", "dev-v1.1.json", "dev", nested(answers=[]), ("/dev-v1.1.json:1: question 'q1'", 'task=squad1', 'task=squad2')),
    ("squad1", "dev-v1.1.json", "dev", nested(answers=None), ("/dev-v1.1.json:1: question 'q1'", 'no answers')),
    ("squad2", "dev-v2.0.json", "dev", '{"data": [{"paragraphs": [{"qas": []}]}]}', ('/dev-v2.0.json', "'context'")),
    ("squad2", "dev-v2.0.json", "dev", '{"data": [{"paragraphs": 3}]}', ('/dev-v2.0.json', "'paragraphs'")),
    ("squad2", "dev-v2.0.json", "dev", nested(is_impossible="perhaps"), ("/dev-v2.0.json:1: question 'q1'", "is_impossible 'perhaps'")),
    # what the first record lacks
    ("sequence", "dev.jsonl", "dev", '{"text": "a", "label": "x"}\n{"text": "b", "text_pair": "c", "label": "y"}\n', ('/dev.jsonl:2', "'text_pair'", "which the first record lacks")),
    ("sequence", "dev.jsonl", "dev", '{"text": "a", "label": "x"}\n{"id": 7, "text": "b", "label": "y"}\n', ('/dev.jsonl:2', "'id'", "which the first record lacks")),
    ("sequence", "test.jsonl", "test", '{"text": "a"}\n{"text": "b", "label": "y"}\n', ('/test.jsonl:2', "'label'", "which the first record lacks")),
    ("tagging", "test.jsonl", "test", '{"tokens": ["a"]}\n{"tokens": ["b"], "tags": ["O"]}\n', ('/test.jsonl:2', "'tags'", "which the first record lacks")),
    ("spans", "dev.jsonl", "dev", '{"question": "a", "context": "b", "answer": "c"}', ("/dev.jsonl:1: question '0'", "'c'")),
    # texts that are made of texts
    ("translation", "train.tsv", "train", "en\tde\nx\ty\n", ('/train.tsv:1', "'source'", "'src'", "'en'")),
    ("translation", "train.tsv", "train", "source\nx\n", ('/train.tsv:1', "'target'", "'tgt'", "'source'")),
    ("translation", "train.jsonl", "train", '{"source": "x", "target": 3}\n', ('/train.jsonl:1', "'target'")),
    ("translation", "train.jsonl", "train", '{"source": "x", "target": "y"}\n{"source": "x"}\n', ('/train.jsonl:2', "'target'")),
]  # fmt: skip


@pytest.mark.parametrize(("task", "name", "split", "text", "words"), FAULTS)
def test_bad_files_are_refused_with_place_and_value(
    tmp_path: Path, task: str, name: str, split: str, text: str | bytes, words: tuple[str, ...]
) -> None:
    write(tmp_path, name, text)
    with pytest.raises(InputError) as caught:
        read(tmp_path, task, split)
    message, (place, *values) = str(caught.value), words
    assert message.startswith(f"{tmp_path}{place}:")
    assert [value for value in values if value.format(tmp_path) not in message] == [], message
    assert "\n" not in message
    assert len(message.replace(str(tmp_path), "")) <= 400
    assert caught.value.exit_code == 2
