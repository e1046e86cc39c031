"""Searching as a user does it: passages in three orders with their answers, and metrics worked out by hand."""

import dataclasses
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Capsys, headed_model, make_text, output_of, real_data, refused, small_model, write_text

from bertkit import export_model, load_predictor
from bertkit.apps.retrieval.library import Hit, Library
from bertkit.apps.retrieval.ranking import Candidate, Searcher, fit, in_order, log_both, read_glossary, scores_of
from bertkit.cli import run
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.settings.search import BothConfig

BOTH = BothConfig(search=0.7, bert=0.4, bias=-0.3)
SMALL = ["task.max_seq_length=40", "task.spans.max_query_length=11", "device=cpu"]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("library")
    text = write_text(folder / "text.txt", make_text(23))
    arguments = [f"corpus.path={text}", f"output={folder / 'library.db'}", "passages.words=31", "passages.overlap=0"]
    assert run(["index", *arguments]) == 0
    return folder / "library.db"


@pytest.fixture(scope="module")
def reader(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = small_model(tokenizer.vocab_size, heads=("span",), with_pooler=False)
    return export_model(model, tokenizer, tmp_path_factory.mktemp("model") / "model")


def search(*arguments: object) -> int:
    return run(["search", *map(str, arguments)])


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_what_the_reader_says_is_what_predict_says(library: Path, reader: Path, tmp_path: Path) -> None:
    """Of every passage, also where it is read in several windows; and `both` is the product that is promised."""
    questions, output = tmp_path / "questions.txt", tmp_path / "found.jsonl"
    questions.write_text("kan lon mir\n\nted sod\n")
    arguments = [f"index={library}", f"model_dir={reader}", f"input={questions}", f"output={output}", *SMALL]
    arguments += ["both.search=0.7", "both.bert=0.4", "both.bias=-0.3", "top_k=20", "candidates=20"]
    assert search(*arguments) == 0
    sizes = {"task.max_seq_length": 40, "task.spans.max_query_length": 11}
    predictor = load_predictor(str(reader), **sizes, device="cpu")
    actual = rows(output)
    assert [each["question"] for each in actual] == ["kan lon mir", "ted sod"]
    for each in actual:
        passages = each["search"]
        assert 10 <= len(passages) <= 20
        predictions = predictor([(each["question"], passage["passage"]) for passage in passages])
        for passage, predicted in zip(passages, predictions, strict=True):
            assert passage["passage"][passage["start"] : passage["end"]] == passage["answer"]
            no_answer = 1 / (1 + math.exp(passage["score_bert"]))
            assert no_answer == pytest.approx(predicted["no_answer_probability"], abs=1e-5)
            if predicted["text"]:
                assert passage["answer"] == predicted["text"]
        by_search = np.array([passage["score_search"] for passage in passages])
        by_bert = np.array([passage["score_bert"] for passage in passages])
        words = np.exp(0.7 * by_search) / np.exp(0.7 * by_search).sum()
        expected = words / (1 + np.exp(-(0.4 * by_bert - 0.3)))
        best_first = sorted(expected / expected.sum(), reverse=True)
        assert [passage["score"] for passage in each["both"]] == pytest.approx(best_first)
        assert [passage["score"] for passage in each["bert"]] == sorted(by_bert, reverse=True)
        assert all({p["id"] for p in each[order]} == {p["id"] for p in passages} for order in ("bert", "both"))


def test_questions_that_the_reader_cuts_are_counted(
    library: Path, reader: Path, tmp_path: Path, capsys: Capsys
) -> None:
    """One of three has more than its 11 pieces."""
    (tmp_path / "questions.txt").write_text(f"kan lon mir\n{'ted ' * 12}\nted sod\n")
    arguments = [f"index={library}", f"model_dir={reader}", *SMALL]
    warning = (
        "warning: 1 question longer than a model reads: the model has read only the beginning, BM25 uses all words\n"
    )
    for question, num_warnings in (
        (f"input={tmp_path / 'questions.txt'}", 1),
        (f"question={'ted ' * 12}", 1),
        ("question=ted", 0),
    ):
        assert search(*arguments, question, "output=-") == 0
        assert capsys.readouterr().err.count(warning) == num_warnings


def test_a_reader_without_unanswerable_questions_has_no_probability(
    library: Path, reader: Path, tmp_path: Path, capsys: Capsys
) -> None:
    """It ranks as others do, but its numbers are not shown."""
    (tmp_path / "questions.txt").write_text("kan lon mir\n")
    arguments = [f"index={library}", f"model_dir={reader}", *SMALL]
    results, printed = [], []
    for number, answered in enumerate(("false", "true")):
        changed, output = [*arguments, f"task.spans.is_always_answered={answered}"], tmp_path / f"{number}.jsonl"
        assert search(*changed, f"input={tmp_path / 'questions.txt'}", f"output={output}") == 0
        results += rows(output)
        capsys.readouterr()
        assert search(*changed, "question=kan lon mir") == 0
        printed.append(capsys.readouterr())
    assert [each.pop("has_odds") for each in results] == [True, False]
    assert [hit["id"] for hit in results[0]["both"]] == [hit["id"] for hit in results[1]["both"]]
    assert ["  bert " in each.out for each in printed] == [True, False]
    assert ["no probabilities" in each.err for each in printed] == [False, True]
    best = results[1]["both"][0]
    assert f">>{best['answer']}<<" in printed[1].out.splitlines()[0]  # in its sentence, before the passages
    assert best["snippet"] in best["passage"]
    assert best["answer"] in best["snippet"]


def test_bm25_needs_no_torch_and_counts_up_to_its_candidates(library: Path, tmp_path: Path) -> None:
    (tmp_path / "questions.jsonl").write_text(json.dumps({"question": "kan lon", "answers": ["kan"]}))
    code = "import sys; from bertkit.cli import run; assert run(sys.argv[1:]) == 0; assert 'torch' not in sys.modules"
    command = [sys.executable, "-c", code, "search", f"index={library}", "candidates=10"]
    for value in ("question=kan lon", f"input={tmp_path / 'questions.jsonl'}"):
        output = output_of([*command, value, f"output={tmp_path / value[:5]}"])
    assert list(json.loads(output)["search"]) == ["accuracy_at_1", "accuracy_at_5", "mrr"]


def test_searcher_gives_plain_rows_in_each_order(library: Path, reader: Path) -> None:
    """Plain types; as many as are asked for, by one order or another."""
    from bertkit.inference.task_model import open_task_model

    opened = open_task_model(str(reader), None, {"max_seq_length": 40, "spans": {"max_query_length": 11}})
    searcher = Searcher(Library(library), opened.predictor("fp32", torch.device("cpu")), BOTH, 7)
    for order in ("search", "bert", "both"):
        actual = searcher.search("kan lon", order, 3)
        assert json.loads(json.dumps(actual)) == actual
        assert (len(actual["answers"]), actual["order"]) == (3, order)
        assert all(each["answer"] for each in actual["answers"])
    assert searcher.search("nothing like it", "both", 3)["answers"] == []
    assert searcher.search("kan lon", None, 3)["order"] == "both"
    plain = Searcher(Library(library), None)
    assert (plain.num_candidates, plain.both.bias < 0) == (20, True)
    assert plain.search("kan lon", None, 3)["order"] == "search"
    assert plain.search("kan lon", "search", 3)["answers"][0]["score_bert"] is None
    with pytest.raises(Exception, match="order=bert: "):
        plain.search("kan", "bert", 3)


def drawn(weights: BothConfig, num_questions: int) -> list[tuple[list[Candidate], list[bool]]]:
    """Questions whose right passage is drawn by the product itself."""
    rng = np.random.default_rng(0)
    questions = []
    for _ in range(num_questions):
        candidates = [
            Candidate(Hit(n, "", "", "", "", "", float(score)), float(rng.normal(0, 5)))
            for n, score in enumerate(rng.normal(12, 3, 11))
        ]
        log = log_both(*scores_of(candidates), dataclasses.astuple(weights))
        right = rng.choice(11, p=np.exp(log) / np.exp(log).sum())
        questions.append((candidates, [n == right for n in range(11)]))
    return questions


def test_the_fit_finds_the_numbers_that_questions_were_drawn_by() -> None:
    questions = drawn(BOTH, 1500)
    actual = fit(questions, BothConfig(1.0, 1.0, 0.0))
    assert dataclasses.astuple(actual)[:2] == pytest.approx((0.7, 0.4), rel=0.25)
    ranked = [in_order(candidates, "both", actual)[0][0].hit.id for candidates, _ in questions]
    rights = [right.index(True) for _, right in questions]
    for order in ("search", "bert"):
        by_one = [in_order(candidates, order, actual)[0][0].hit.id for candidates, _ in questions]
        assert np.mean(np.array(ranked) == rights) > 0.05 + np.mean(np.array(by_one) == rights)
    assert fit([(questions[0][0], [False] * 11)], BOTH) == BOTH


def test_search_metrics_are_as_by_hand(tmp_path: Path, capsys: Capsys) -> None:
    """Four questions: right at once, at second, not at all, and by a passage's id; one without a label does not count."""
    text, output = tmp_path / "text.jsonl", tmp_path / "found.jsonl"
    texts = ["Ada wrote notes on the engine.", "The engine of Bob is red, the engine.", "Nobody is here."]
    text.write_text("".join(json.dumps({"text": each}) + "\n" for each in texts))
    assert run(["index", f"corpus.path={text}", f"output={tmp_path / 'library.db'}"]) == 0
    questions = [
        {"id": "a", "question": "Who wrote notes?", "answers": ["Ada"], "context": texts[0]},
        {"id": "b", "question": "red engine", "answers": {"text": ["notes"], "answer_start": [10]}, "context": texts[0]},
        {"id": "c", "question": "Who is red?", "answers": [{"text": "Eve", "answer_start": 0}]},
        {"id": "d", "question": "nobody", "passage": 3},
        {"id": "e", "question": "engine"},
    ]  # fmt: skip
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in questions))
    capsys.readouterr()
    assert search(f"index={tmp_path / 'library.db'}", f"input={path}", f"output={output}") == 0
    metrics = json.loads(capsys.readouterr().out)
    assert metrics["num_questions"] == 4
    actual = {name: value["mean"] for name, value in metrics["search"].items()}
    assert actual == {"accuracy_at_1": 0.5, "accuracy_at_5": 0.75, "accuracy_at_20": 0.75, "mrr": 0.625}
    low, high = metrics["search"]["accuracy_at_1"]["interval"]
    assert 0 <= low < 0.5 < high <= 1
    assert [each.get("right_at") for each in rows(output)] == [{"search": place} for place in (1, 2, None, 1)] + [None]


def test_a_trec_run_lists_each_document_once_by_its_best_passage(tmp_path: Path, capsys: Capsys) -> None:
    """Under its own id, as in BEIR, or its place; the six columns are without further blanks."""
    corpus, text, questions = tmp_path / "corpus.jsonl", tmp_path / "a b.txt", tmp_path / "questions.jsonl"
    records = [
        {"_id": "d 1", "title": "", "text": "kan lon. kan ted. kan run."},
        {"id": 7, "text": "lon lon. kan ted."},
    ]
    corpus.write_text("".join(json.dumps(record) + "\n" for record in records))
    text.write_text("nothing\n\nmir kan lon son\n")
    arguments = [f"corpus.path=[{corpus},'{text}']", f"output={tmp_path / 'library.db'}"]
    assert run(["index", *arguments, "passages.words=2", "passages.overlap=0"]) == 0
    questions.write_text('{"id": "q 1", "question": "kan"}\n{"id": "q2", "question": "mir lon"}\n{"question": "xyz"}\n')
    twice = tmp_path / "twice.jsonl"
    twice.write_text('{"id": "q", "question": "kan"}\n{"id": "q", "question": "lon"}\n')
    library, output = f"index={tmp_path / 'library.db'}", tmp_path / "run.trec"
    assert search(library, f"input={questions}", f"output={output}", "top_k=2", "candidates=9") == 0
    lines = [line.split(" ") for line in output.read_text().splitlines()]
    assert {len(line) for line in lines} == {6}
    assert [(line[0], line[1], line[3], line[5]) for line in lines] == [
        (question, "Q0", rank, "bertkit-search") for question in ("q_1", "q2") for rank in ("1", "2")
    ]
    assert [line[2] for line in lines] == ["d_1", "7", "a_b.txt#3", "7"]
    for first, second in (lines[:2], lines[2:]):
        assert float(first[4]) >= float(second[4]) > 0
    for arguments, line in (
        (["question=x"], "a TREC run needs input="),
        ([f"input={questions}", "order=all"], "order=all: a TREC run"),
    ):
        refused(search(library, *arguments, f"output={output}"), line, capsys)
    repeated = [f"input={twice}", f"output={tmp_path / 'twice.trec'}"]
    refused(
        search(library, *repeated), "question id 'q' occurs twice, which would be one question in a TREC run", capsys
    )
    twice.write_text('{"id": null, "question": "kan"}\n{"id": null, "question": "lon"}\n')
    assert search(library, f"input={twice}", f"output={output}", "candidates=9", "overwrite=true") == 0
    numbers = [line.split(" ")[0] for line in output.read_text().splitlines()]
    assert [*dict.fromkeys(numbers)] == ["1", "2"]


def test_documents_with_the_same_id_are_counted_for_a_trec_run(tmp_path: Path, capsys: Capsys) -> None:
    """Each id is one document there, with the score of the best of them."""
    for name, texts in (("one", ["kan lon.", "mir son."]), ("two", ["kan kan ted.", "run ran."])):
        records = [{"id": number, "text": text} for number, text in enumerate(texts)] + [{"text": f"without {name}"}]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (tmp_path / "questions.jsonl").write_text('{"id": "q", "question": "kan"}\n')
    output = tmp_path / "run.trec"
    line = "warning: 2 ids are each of several documents, such as '0': a TREC run counts these as one"
    for files, is_warned in ((["one"], False), (["one", "two"], True)):
        paths, library = ",".join(f"'{tmp_path / name}.jsonl'" for name in files), tmp_path / f"{len(files)}.db"
        assert run(["index", f"corpus.path=[{paths}]", f"output={library}"]) == 0
        capsys.readouterr()
        arguments = [f"input={tmp_path / 'questions.jsonl'}", "overwrite=true"]
        assert search(f"index={library}", *arguments, f"output={output}") == 0
        assert (line in capsys.readouterr().err.splitlines()) == is_warned
        assert search(f"index={library}", *arguments, f"output={output.with_suffix('.jsonl')}") == 0
        assert line not in capsys.readouterr().err


def test_a_glossary_widens_a_question(tmp_path: Path, capsys: Capsys) -> None:
    text, glossary = tmp_path / "a.txt", tmp_path / "glossary.tsv"
    text.write_text("Der Hund schläft.\n\nDie Katze frisst.\n")
    glossary.write_text("Dog\thund\ndog\tköter\nbig cat\tkatze\n")
    library = f"index={tmp_path / 'library.db'}"
    assert run(["index", f"corpus.path={text}", f"output={tmp_path / 'library.db'}"]) == 0
    assert search(library, "question=The dog?", "top_k=1") == 0
    assert "no passage contains a word of the question" in capsys.readouterr().out
    assert search(library, "question=The dog?", f"glossary={glossary}", "top_k=1") == 0
    assert "Der *Hund* schläft." in capsys.readouterr().out
    for question, is_found in (("a big cat", True), ("a cat, big", False)):
        assert search(library, f"question={question}", f"glossary={glossary}", "top_k=1") == 0
        assert ("Die *Katze* frisst." in capsys.readouterr().out) == is_found
    os.mkfifo(tmp_path / "pipe")
    refused(
        search(library, "question=x", f"glossary={tmp_path / 'pipe'}"), f"glossary={tmp_path / 'pipe'} is a", capsys
    )
    for line in ("dog hund", "!!!\thund", "dog\t…"):
        glossary.write_text(f"cat\tkatze\n{line}\n")
        refused(search(library, "question=The dog?", f"glossary={glossary}"), f"{glossary}:2: expected a word", capsys)


def test_a_translation_widens_a_question(
    library: Path, reader: Path, tokenizer: Tokenizer, tmp_path: Path, capsys: Capsys
) -> None:
    """By the words that `predict` writes, beside its own; the reader reads the question itself."""
    translator = export_model(headed_model(tokenizer, "generation", scale=3), tokenizer, tmp_path / "translator")
    question, output = "kan lon", tmp_path / "found.jsonl"
    written = load_predictor(str(translator), device="cpu")(question)["text"]
    arguments = [
        f"index={library}",
        f"translate={translator}",
        f"question={question}",
        f"output={output}",
        "device=cpu",
    ]
    assert search(*arguments, "top_k=50") == 0
    actual = [(hit["id"], hit["score_search"]) for hit in rows(output)[0]["answers"]]
    expected, without = (
        [(hit.id, hit.score) for hit in Library(library).find(question, 50, more)] for more in ([written], [])
    )
    assert actual == expected != without
    assert search(*arguments, f"model_dir={reader}", "overwrite=true", "order=bert", *SMALL) == 0
    best = rows(output)[0]["answers"][0]
    predictions = load_predictor(
        str(reader), **{"task.max_seq_length": 40, "task.spans.max_query_length": 11}, device="cpu"
    )
    odds = predictions((question, best["passage"]))["no_answer_probability"]
    assert 1 / (1 + math.exp(best["score_bert"])) == pytest.approx(odds, abs=1e-5)
    masked_lm = export_model(headed_model(tokenizer, "masked_lm"), tokenizer, tmp_path / "masked_lm")
    encoder = export_model(headed_model(tokenizer), tokenizer, tmp_path / "encoder")
    for place, line in (
        (reader, "its task is of kind spans; give a model fine-tuned on task=translation"),
        (masked_lm, "its task is of kind fill_mask"),
        (encoder, "no head for prediction"),
        (tmp_path / "nowhere", "no such directory"),
    ):
        arguments[1] = f"translate={place}"
        refused(search(*arguments, "overwrite=true"), f"translate={place}: {line}", capsys)


def test_a_question_may_be_what_means_a_missing_value(library: Path, capsys: Capsys) -> None:
    assert search(f"index={library}", "question=???") == 0
    assert "no passage contains a word of the question" in capsys.readouterr().out


def catalogue(path: Path, messages: dict[str, str]) -> None:
    """Write a gettext catalogue: a header, a table of the messages and one of the translations, their texts."""
    rows = sorted(
        (key.encode(), value.encode())
        for key, value in {"": "Content-Type: text/plain; charset=UTF-8\n", **messages}.items()
    )
    texts = [key for key, _ in rows] + [value for _, value in rows]
    ends = 28 + 8 * len(texts) + np.cumsum([len(text) + 1 for text in texts])
    table = [number for text, end in zip(texts, ends, strict=True) for number in (len(text), end - len(text) - 1)]
    path.parent.mkdir(parents=True)
    header = [0x950412DE, 0, len(rows), 28, 28 + 8 * len(rows), 0, 0]
    path.write_bytes(np.array([*header, *table], "<u4").tobytes() + b"".join(text + b"\0" for text in texts))


def test_a_dictionary_from_catalogues(tmp_path: Path, capsys: Capsys) -> None:
    """Counts alone would give "el" for every word; alignment gives each its own."""
    names = {"file": "archivo", "table": "cuadro", "line": "renglón"}
    messages = {f"{verb} the {name}": f"{other} el {names[name]}" for name in names
                for verb, other in (("Open", "Abrir"), ("_Close", "_Cerrar"), ("<b>Print</b>", "<b>Imprimir</b>"))}  # fmt: skip
    catalogue(tmp_path / "es" / "LC_MESSAGES" / "a.mo", {**messages, "No %s here": "No hay %s", "File": "Archivo"})
    texts = ("Where is the file?", "¿Dónde está?")
    for name, question in zip(("en", "es"), texts, strict=True):
        answers = [{"text": f"archivo {name}", "answer_start": 0}]
        paragraph = {"context": f"archivo {name}", "qas": [{"id": "a", "question": question, "answers": answers}]}
        (tmp_path / f"{name}.json").write_text(json.dumps({"data": [{"title": "", "paragraphs": [paragraph]}]}))
    script = Path(__file__).parents[2] / "recipes" / "search_qa" / "catalogues.py"
    files = [tmp_path / name for name in ("en.json", "es.json", "out")]
    subprocess.run([sys.executable, script, tmp_path, "es", *files], check=True, capture_output=True)
    pairs = [(files[2] / f"{split}.tsv").read_text("utf-8").splitlines()[1:] for split in ("train", "dev")]
    assert sorted([*pairs[0], *pairs[1]])[:2] == [
        "Close the file\tCerrar el archivo",
        "Close the line\tCerrar el renglón",
    ]
    assert sum(map(len, pairs)) == 9
    glossary = read_glossary(files[2] / "words.tsv")
    assert {word: others[0].split()[0] for word, others in glossary.items()} == {
        **names, "the": "el", "open": "abrir", "close": "cerrar", "print": "imprimir"}  # fmt: skip
    (question,) = rows(files[2] / "questions.jsonl")
    assert (question["question"], question["context"]) == (texts[0], "archivo es")


REFUSED = [
    (["question=x", "input=y"], "input= and question="),
    ([], "missing value: set question=, or input="),
    (["question= "], "question= is blank"),
    (["question=x", "order=bert"], "order=bert: "),
    (["question=x", "fit=true", "model_dir=m"], "fit=true: has no effect with question="),
    (["input=no.jsonl"], "input=no.jsonl: "),
]


@pytest.mark.parametrize(("arguments", "line"), REFUSED)
def test_refusals_of_a_search(arguments: list[str], line: str, library: Path, capsys: Capsys) -> None:
    refused(search(f"index={library}", *arguments), line, capsys)


def test_no_line_repeats_a_password(capsys: Capsys) -> None:
    code = search("index=https://me:s3cret@example.org/library.db", "question=x")
    refused(code, "index=https://...@example.org/library.db: no such file", capsys)


INPUTS = [
    ("q.jsonl", '{"question": 3}\n', "q.jsonl:1: 'question'"),
    ("q.jsonl", '{"q": "x"}\n', "no column 'question'"),
    ("q.jsonl", '{"question": "x", "answers": [1]}\n', "q.jsonl:1: field 'answers'"),
    ("q.csv", "question\n\n", "no questions"),
    ("q.json", "[1, 2", "q.json:1: "),
    ("q.txt", "\n\n", "no questions"),
]


@pytest.mark.parametrize(("name", "text", "line"), INPUTS)
def test_inputs_that_hold_no_questions(
    name: str, text: str, line: str, library: Path, tmp_path: Path, capsys: Capsys
) -> None:
    (tmp_path / name).write_text(text)
    refused(search(f"index={library}", f"input={tmp_path / name}"), line, capsys)


def test_search_refuses_model_without_span_head(
    library: Path, tokenizer: Tokenizer, tmp_path: Path, capsys: Capsys
) -> None:
    model = small_model(tokenizer.vocab_size, heads=("sequence",), labels=("a", "b"))
    path = export_model(model, tokenizer, tmp_path / "model")
    refused(
        search(f"index={library}", f"model_dir={path}", "question=kan"),
        "model_dir: its task is of kind sequence",
        capsys,
    )


@pytest.mark.slow
def test_search_on_real_questions(tmp_path: Path, capsys: Capsys) -> None:
    """XQuAD's English paragraphs: BM25 alone finds most; stems find more."""
    squad = real_data("xquad", "xquad.en.json")
    results = {}
    for stemming in ("none", "english"):
        output = tmp_path / f"{stemming}.db"
        assert run(["index", f"corpus.path={squad}", f"output={output}", f"passages.stemming={stemming}"]) == 0
        capsys.readouterr()
        assert search(f"index={output}", f"input={squad}", f"output={tmp_path / 'o.jsonl'}") == 0
        results[stemming] = json.loads(capsys.readouterr().out)["search"]
    assert results["none"]["accuracy_at_1"]["mean"] == pytest.approx(0.8966, abs=0.002)
    assert results["english"]["accuracy_at_1"]["mean"] > results["none"]["accuracy_at_1"]["mean"]
