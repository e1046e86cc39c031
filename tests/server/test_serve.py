"""What the server answers: what predict, embed and view give, over real sockets; and a clear no to everything else."""

import base64
import contextlib
import gzip
import http.client
import json
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Capsys, headed_model, make_text, refused, write_text
from serving import Connection, Server, ask, chunked, request, serving

from bertkit import export_model, load_embedder, load_predictor
from bertkit.apps.retrieval.encoders import PassageEncoder
from bertkit.apps.retrieval.library import Library
from bertkit.apps.retrieval.ranking import Searcher
from bertkit.apps.server.models import open_models
from bertkit.base.typed_settings import build
from bertkit.cli import run
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.settings.reading.compose import compose
from bertkit.settings.serve import ServeSettings

HEADS = {"stars": ("sequence",), "names": ("token",), "reader": ("span",), "endings": ("choice",),
         "words": ("masked_lm", "next_sentence"), "bare": (), "writer": ("generation",)}  # fmt: skip
SHORT = "task.generation.max_target_length"  # of the texts that are written
LIMITS = ["max_body_bytes=20000", "max_inputs=20", "max_tokens=400", "max_view_tokens=20", f"{SHORT}=13"]
CHOICE = {"context": "kan lon", "endings": ["min", "rur ten", "kar"]}
# of each model, inputs of every form that it takes
INPUTS: dict[str, list[Any]] = {
    "stars": ["kan lon", "", "min " * 140, ["kan", "lon min"], {"text": "kar"}, {"text": "rur", "id": "x"},
              {"text": "a", "text_pair": "b"}, "\ud83d\ude00 \u202emin <script>"],
    "names": ["kan lon, min", ["kan", "lon"], {"words": ["min"]}, {"text": "kar rur"}, ["kan", "lon", "min"]],
    "reader": [["kan lon", "min rur kan ten"], {"question": "kan", "context": "lon " * 50, "id": "q"}, ["min", "kar"]],
    "endings": [CHOICE, {"context": "min", "endings": ["a", "b"]}, CHOICE],
    "words": ["kan [MASK] min", "no mask", "[MASK] [MASK]", {"text": "[MASK]"}],
    "writer": ["kan lon", "", "min " * 50, {"source": "kar rur"}, {"source": "ten", "id": "x"}, "\u202emin <script>"],
}  # fmt: skip


@pytest.fixture(scope="module")
def models(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name, heads in HEADS.items():
        export_model(headed_model(tokenizer, *heads, max_position_embeddings=97), tokenizer, folder / name)
    (folder / "writer" / "generation_config.json").write_text(
        '{"max_length": 21}'
    )  # named, so no line says that it is not
    text = write_text(folder / "text.txt", make_text(11))
    library = ["index", f"corpus.path={text}", f"model_dir={folder / 'bare'}", f"output={folder / 'library.db'}"]
    assert run([*library, "passages.words=31", "passages.overlap=0"]) == 0
    return folder


@pytest.fixture(scope="module")
def server(python: Path, models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("empty")
    listed = ",".join(str(models / name) for name in HEADS)
    with serving(
        python,
        f"model_dir=[{listed}]",
        f"index={models / 'library.db'}",
        "candidates=5",
        f"translate={models / 'writer'}",
        "hosts=[Bert.example]",
        *LIMITS,
        folder=folder,
    ) as result:
        yield result
        assert list(folder.iterdir()) == []  # nothing is written
        assert result.stop() == 0
    assert len(result.printed) == 1, result.printed  # and nothing said of all that was asked


def same(ours: Any, theirs: Any) -> bool:
    """Whether both are equal; numbers may differ by the rounding of other batches."""
    if isinstance(theirs, float):
        return bool(np.isclose(ours, theirs, rtol=0, atol=2e-6))
    if isinstance(theirs, dict):
        return set(ours) == set(theirs) and all(same(ours[key], theirs[key]) for key in theirs)
    if isinstance(theirs, (list, tuple)):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    return bool(ours == theirs)


def predicted(models: Path, name: str, inputs: list[Any]) -> list[Any]:
    """The prediction for each input alone, numbered as in a request."""
    settings = {SHORT: 13} if name == "writer" else {}
    predictor, rows = load_predictor(models / name, device="cpu", **settings), []
    for place, value in enumerate(inputs):
        is_pair = name in ("stars", "reader") and isinstance(value, list)
        (row,) = predictor([tuple(value) if is_pair else value])
        rows.append(row if isinstance(value, dict) and "id" in value else {**row, "id": str(place)})
    return rows


def test_answers_are_those_of_predict_whoever_else_asks(server: Server, models: Path) -> None:
    expected = {name: predicted(models, name, inputs) for name, inputs in INPUTS.items()}
    wrong: list[Any] = []
    num_answers = [0]

    def client(number: int) -> None:
        rng = np.random.default_rng(number)
        with Connection(server.port) as connection:
            for _ in range(12):
                name = str(rng.choice(list(INPUTS)))
                chosen = rng.integers(len(INPUTS[name]), size=rng.integers(1, 5)).tolist()
                if name in ("reader", "writer"):
                    chosen = sorted(set(chosen))  # an id comes once
                elif name == "endings":
                    chosen = chosen[:1] * len(chosen)  # of as many endings each
                actual = connection.ask(
                    request("/predict", {"model": name, "inputs": [INPUTS[name][place] for place in chosen]})
                )
                rows = [dict(expected[name][place]) for place in chosen]
                for n, (place, row) in enumerate(zip(chosen, rows, strict=True)):
                    if not (isinstance(INPUTS[name][place], dict) and "id" in INPUTS[name][place]):
                        row["id"] = str(n)
                if actual.status != 200 or not same(actual.json, {"predictions": rows}):
                    wrong.append((name, chosen, actual.body, rows))
                num_answers[0] += 1

    clients = [threading.Thread(target=client, args=(number,)) for number in range(12)]
    for each in clients:
        each.start()
    for each in clients:
        each.join()
    assert wrong[:1] == []
    assert num_answers == [144]


def test_one_input_is_a_list_of_one(server: Server) -> None:
    for path, value in (("/predict", "kan lon"), ("/predict", {"text": "kar", "id": "x"}), ("/embed", "kan lon")):
        single, several = (ask(server.port, path, {"inputs": inputs}) for inputs in (value, [value]))
        assert single.status == 200
        assert same(single.json, several.json)
    assert len(ask(server.port, "/predict", {"inputs": "kan lon"}).json["predictions"]) == 1


def test_a_wrong_request_fails_alone(models: Path) -> None:
    """In the same batch as others, of which each gets its own answer."""
    settings = build(ServeSettings, compose("serve", [f"model_dir={models / 'stars'}", "device=cpu"]))
    served = open_models(settings)["stars"]
    requests: list[list[Any]] = [["kan"], [{"txt": "lon"}], ["min", 5], ["lon"], ["kan " * 300], [["a", "b", "c"]],
                                 ["kar", {"text": "x"}]]  # fmt: skip
    batch = served.predict_requests(requests, max_tokens=90)
    answers, alone = batch.results, [served.predict_requests([each], max_tokens=90).results[0] for each in requests]
    assert [isinstance(each, Exception) for each in answers] == [False, True, True, False, True, True, False]
    for ours, theirs in zip(answers, alone, strict=True):
        assert str(ours) == str(theirs) if isinstance(ours, Exception) else same(ours, theirs)
    assert re.search(r"inputs\[0\]: .*'text'", str(answers[1]))
    assert "task.columns" not in str(answers[1])
    assert str(answers[2]).startswith("inputs[1]: a number, expected")
    assert "90" in str(answers[4])
    assert batch.num_sequences == 4
    assert batch.num_tokens == sum(map(len, served.predictor.tokenizer(["kan", "lon", "kar", "x"])["input_ids"]))


def test_all_wrong_inputs_and_fields_of_a_request_are_named(server: Server) -> None:
    def message(path: str, body: dict[str, Any]) -> str:
        answer = ask(server.port, path, body)
        assert answer.status == 400
        return str(answer.json["error"]["message"])

    rows = message("/predict", {"inputs": [5, "kan", {"txt": "lon"}, 7]})
    assert re.findall(r"(?:^|; )inputs\[(\d)\]: ", rows) == ["0", "3", "2"]  # those of one form together
    wrong = "a number, expected a text"
    assert message("/embed", {"inputs": [5, "kan", 7]}) == f"inputs[0]: {wrong}; inputs[2]: {wrong}"
    half = "contains half of a surrogate pair; remove it"
    assert message("/embed", {"inputs": ["kan", "lon \ud83d"]}) == f"inputs[1]: {half}"
    assert message("/predict", {"inputs": ["kan", "lon \ud83d"]}) == f"inputs[1]: 'text' {half}"
    assert message("/predict", {"inputs": [{"text": "\ude00"}]}) == f"inputs[0]: 'text' {half}"
    fields = message("/predict", {"inputs": ["kan"], "modle": "stars", "alternatives": "two"})
    assert "modle: " in fields
    assert "alternatives: " in fields
    assert message("/embed", {"inputs": [*range(20)]}).endswith(" and 12 more")


A_TEXT = "expected a text"
AN_INPUT = "expected a text, a list or an object"
NO_INPUTS: list[tuple[str, str, Any, str]] = [  # a path, a model, what is no input of it, and the words of the refusal
    ("/predict", "stars", None, f"null, {AN_INPUT}"),
    ("/predict", "names", None, f"null, {AN_INPUT}"),
    ("/predict", "words", None, f"null, {AN_INPUT}"),
    ("/predict", "writer", None, f"null, {AN_INPUT}"),
    ("/predict", "stars", True, f"true or false, {AN_INPUT}"),
    ("/predict", "stars", 3, f"a number, {AN_INPUT}"),
    ("/predict", "stars", ["a", None], "'text' is ['a', None]; expected text"),
    ("/predict", "stars", [["a"]], "'text' is [['a']]; expected text"),
    ("/predict", "stars", {"text": None}, "no column 'text' or 'sentence' or 'sentence1' (it has: none)"),
    ("/predict", "names", {}, "no column 'tokens' or 'words' (it has: none)"),
    ("/predict", "reader", {"question": "kan", "context": None}, "no column 'context' (it has: 'question')"),
    ("/view", "stars", 3, f"a number, {AN_INPUT}"),
    ("/view", "stars", ["a", None], "'text' is ['a', None]; expected text"),
    (
        "/view",
        "words",
        {"txt": "a"},
        "no column 'text' or 'sentence' or 'sentence1' (it has: 'txt'); did you mean 'txt'?",
    ),
    ("/embed", "bare", None, f"null, {A_TEXT}"),
    ("/v1/embeddings", "bare", None, f"null, {A_TEXT}"),
    ("/v1/embeddings", "bare", "\ud800", "contains half of a surrogate pair; remove it"),
]


@pytest.mark.parametrize(("path", "model", "value", "wrong"), NO_INPUTS)
def test_an_input_of_another_type_is_refused(server: Server, path: str, model: str, value: Any, wrong: str) -> None:
    good = ["kan", "lon"] if model == "reader" else "kan"
    field = {"/v1/embeddings": "input", "/view": "input"}.get(path, "inputs")
    answer = ask(server.port, path, {"model": model, field: value if path == "/view" else [good, value]})
    assert (answer.status, answer.code) == (400, "bad_input")
    assert answer.json["error"]["message"] == f"{field if path == '/view' else f'{field}[1]'}: {wrong}"


WRONG_FIELDS: list[tuple[str, Any, str]] = [  # a path, a body, and the whole message
    ("/predict", 3, "the body: 3; expected an object"),
    ("/predict", {}, "inputs: missing; GET /openapi.json lists all fields"),
    ("/predict", {"inputs": []}, "inputs: []; expected at least one item"),
    ("/predict", {"inputs": "a", "model": 3}, "model: 3; expected a text"),
    ("/predict", {"inputs": "a", "alternatives": "two"}, 'alternatives: "two"; expected a whole number'),
    ("/predict", {"inputs": "a", "alternatives": 99}, "alternatives: 99; expected at most 20"),
    ("/predict", {"inputs": "a", "modle": 1}, "modle: unknown field; leave it out, or GET /openapi.json for all fields"),
    ("/embed", {"inputs": "a", "normalize": "yes", "truncate": False},
     'normalize: "yes"; expected true or false; truncate: false; expected true'),
    ("/v1/embeddings", {"input": "a", "encoding_format": "hex"}, "encoding_format: \"hex\"; expected 'float' or 'base64'"),
    ("/search", {"question": " "}, 'question: " "; expected a text that is not blank'),
    ("/search", {"question": "a \ud800"}, "question: contains half of a surrogate pair; remove it"),
    ("/search", {"question": "a", "top_k": 0, "where": "x"}, 'top_k: 0; expected at least 1; where: "x"; expected a list'),
    ("/search", {"question": "a", "where": ["x", 3]},
     'where[0]: "x"; expected a text with = in it; where[1]: 3; expected a text'),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "message"), WRONG_FIELDS)
def test_a_wrong_field_is_named_with_what_is_expected(server: Server, path: str, body: Any, message: str) -> None:
    answer = ask(server.port, path, body)
    assert (answer.status, answer.code) == (400, "bad_input")
    assert answer.json["error"]["message"] == message


def test_null_in_a_row_leaves_the_field_out(server: Server) -> None:
    rows = [{"text": "kan lon"}, {"text": "kan lon", "text_pair": None}]
    first, second = ask(server.port, "/predict", {"model": "stars", "inputs": rows}).json["predictions"]
    assert first["probabilities"] == second["probabilities"]


def test_vectors_are_those_of_embed(server: Server, models: Path) -> None:
    texts = ["kan lon", "", "min " * 140]
    for name in ("stars", "bare"):
        for normalize in (None, True, False):
            body = {"inputs": texts, "model": name, "normalize": normalize, "truncate": True}
            own = load_embedder(models / name, normalize=normalize, device="cpu")(texts)
            assert np.allclose(ask(server.port, "/embed", body).json, own, atol=1e-6)
    assert ask(server.port, "/embed", {"inputs": ["a", 3]}).json["error"]["message"].startswith("inputs[1]: a number")


def test_models_are_described_and_next_sentence_is_predicted(server: Server) -> None:
    described = {each["name"]: each for each in ask(server.port, "/models").json["models"]}
    kinds = {"stars": "sequence", "names": "tagging", "reader": "spans", "endings": "choice", "words": "fill_mask",
             "words/next_sentence": "next_sentence", "bare": "embedding", "writer": "generation"}  # fmt: skip
    assert {name: each["kind"] for name, each in described.items()} == kinds
    assert described["stars"]["labels"] == ["bad", "good", "ugly"]
    assert [name for name, each in described.items() if each["needs_pair"]] == ["reader", "words/next_sentence"]
    for name, each in described.items():  # the examples are ones
        if name != "bare":
            actual = ask(server.port, "/predict", {"model": name, "inputs": each["examples"]})
            assert len(actual.json["predictions"]) == len(each["examples"])
    (row,) = ask(server.port, "/predict", {"model": "words/next_sentence", "inputs": [["kan lon.", "min."]]}).json[
        "predictions"
    ]
    assert sum(row["probabilities"].values()) == pytest.approx(1)
    assert set(row["probabilities"]) == {"follows", "does not follow"}


def test_view_page_is_served_for_every_kind(server: Server) -> None:
    for name, value in (("stars", "kan lon"), ("reader", ["kan", "min kan"]), ("words", "kan [MASK]"), ("bare", "kan"),
                        ("writer", "kan lon")):  # fmt: skip
        actual = ask(server.port, "/view", {"model": name, "input": value})
        assert (actual.status, actual.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert b"</html>" in actual.body
        assert (b'id="aligned"' in actual.body) == (name == "writer")
    assert ask(server.port, "/view", {"input": "kan lon min rur " * 9}).code == "too_large"


def test_passages_are_those_of_the_searcher(server: Server, models: Path) -> None:
    reader, writer = (load_predictor(models / name, device="cpu")._predictor for name in ("reader", "writer"))
    library, encoder = Library(models / "library.db"), PassageEncoder(str(models / "bare"), "encoder", "cpu")
    searcher = Searcher(library, reader, num_candidates=5, translator=writer, encoder=encoder)
    for order in (*searcher.orders, None):
        actual = ask(server.port, "/search", {"question": "kan lon min", "order": order, "top_k": 4}).json
        own = searcher.search("kan lon min", order, 4)
        assert same(actual["answers"], own["answers"])
        assert actual["order"] == own["order"]
        assert len(actual["answers"]) == 4
        assert actual["is_cut"] is False
    long = ask(server.port, "/search", {"question": "kan " * 200}).json
    assert (long["is_cut"], searcher.search("kan " * 200, None, 4)["is_cut"]) == (True, True)
    models_reply = ask(server.port, "/models").json
    assert (models_reply["has_search"], models_reply["orders"]) == (
        True,
        ["search", "vectors", "hybrid", "bert", "both"],
    )


def test_what_takes_long_neither_stops_nor_breaks_predictions(server: Server) -> None:
    """Views and searches run in other threads, with the same models and tokenizers."""
    of_reader = {"inputs": [["kan", "min rur " * 9]] * 9, "model": "reader"}
    asked = [("/predict", {"inputs": ["kan lon"] * 20}), ("/predict", of_reader), ("/search", {"question": "kan lon"}),
             ("/view", {"input": "kan lon"}), ("/view", {"input": ["kan", "min"], "model": "reader"})]  # fmt: skip
    answers, until = [0] * len(asked), time.monotonic() + 60

    def again(client: int, path: str, body: Any) -> None:
        while (min(answers) < 1 or sum(answers) <= 20) and time.monotonic() < until:
            assert ask(server.port, path, body).status == 200
            answers[client] += 1

    with ThreadPoolExecutor(len(asked)) as pool:
        clients = [pool.submit(again, client, *each) for client, each in enumerate(asked)]
    for each in clients:
        each.result()
    assert min(answers) >= 1
    assert sum(answers) > 20


def test_openapi_and_metrics_describe_the_server(server: Server) -> None:
    described = ask(server.port, "/openapi.json").json
    assert described["openapi"] == "3.1.0"
    paths = ("/", "/docs", "/predict", "/embed", "/view", "/search", "/models", "/health", "/healthz", "/metrics", "/info",
             "/v1/embeddings", "/v1/models", "/v1/models/{name}")  # fmt: skip
    assert set(described["paths"]) == set(paths)
    schemas = described["components"]["schemas"]
    for path in ("predict", "embed", "view", "search"):
        (name,) = described["paths"][f"/{path}"]["post"]["requestBody"]["content"]["application/json"][
            "schema"
        ].values()
        assert schemas[name.rpartition("/")[2]]["additionalProperties"] is False
        answers = described["paths"][f"/{path}"]["post"]["responses"]
        assert list(answers) == ["200", "default"]
        assert ("content" in answers["200"]) == (path != "view")
        assert answers["default"]["content"]["application/json"]["schema"]["$ref"].endswith("/Problem")
    (example,) = schemas["PredictBody"]["properties"]["inputs"]["examples"]
    assert ask(server.port, "/predict", {"inputs": example}).status == 200
    before = figures(server)
    ask(server.port, "/predict", {"inputs": ["kan lon", "min"]})
    after = figures(server)
    assert (
        after['bertkit_requests_total{path="/predict",status="200"}']
        == before['bertkit_requests_total{path="/predict",status="200"}'] + 1
    )
    assert after["bertkit_batch_sequences_sum"] == before["bertkit_batch_sequences_sum"] + 2
    assert after["bertkit_batch_tokens_sum"] > before["bertkit_batch_tokens_sum"] + 6
    assert after["bertkit_queue_requests"] == 0
    assert (
        after['bertkit_request_seconds_bucket{le="+Inf",path="/predict"}']
        == after['bertkit_request_seconds_count{path="/predict"}']
    )
    assert ask(server.port, "/healthz").json == {"status": "ready"}


def figures(server: Server) -> dict[str, float]:
    result = ask(server.port, "/metrics")
    assert result.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = [line for line in result.body.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def post(body: Any, path: str = "/predict", **headers: str | None) -> bytes:
    return request(path, body, **headers)


def raw(*lines: str, body: bytes = b"") -> bytes:
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


JSON = ("host: localhost", "content-type: application/json")
CHUNKED = (*JSON, "transfer-encoding: chunked")
GOOD = b'{"inputs": ["kan"]}'
# what is sent -> the statuses that may answer it (0: the connection is closed), and the code of the error
BAD: dict[str, tuple[bytes, tuple[int, ...], str | None]] = {
    # what is asked
    "no JSON": (post(b"kan lon"), (400,), "bad_json"),
    "half of JSON": (post(b'{"inputs": ["kan"'), (400,), "bad_json"),
    "an empty body": (post(b""), (400,), "bad_input"),
    "null": (post(b"null"), (400,), "bad_input"),
    "none at all": (post({"inputs": []}), (400,), "bad_input"),
    "null for a list": (post({"inputs": None}), (400,), "bad_input"),
    "a number for a text": (post({"inputs": [3]}), (400,), "bad_input"),
    "an unknown column": (post({"inputs": [{"txt": "kan"}]}), (400,), "bad_input"),
    "a number in a column": (post({"inputs": [{"text": 3}]}), (400,), "bad_input"),
    "three texts": (post({"inputs": [["a", "b", "c"]]}), (400,), "bad_input"),
    "an unknown field": (post({"inputs": ["kan"], "modle": "stars"}), (400,), "bad_input"),
    "an unknown model": (post({"inputs": ["kan"], "model": "star"}), (404,), "no_model"),
    "a number for a model": (post({"inputs": ["kan"], "model": 7}), (400,), "bad_input"),
    "a model without a head": (post({"inputs": ["kan"], "model": "bare"}), (400,), "no_head"),
    "a pair for one that writes": (post({"inputs": [["a", "b"]], "model": "writer"}), (400,), "bad_input"),
    "a source of another name": (post({"inputs": [{"en": "a"}], "model": "writer"}), (400,), "bad_input"),
    "texts that would be long": (post({"inputs": ["min " * 7] * 20, "model": "writer"}), (413,), "too_large"),
    "a pair for single texts": (post({"inputs": [["a", "b"]], "model": "words"}), (400,), "bad_input"),
    "a text for a reader": (post({"inputs": ["kan"], "model": "reader"}), (400,), "bad_input"),
    "an id twice": (post({"inputs": 2 * [{"id": "a", "question": "a", "context": "b"}], "model": "reader"}), (400,), "bad_input"),
    "one ending": (post({"inputs": [{"context": "a", "endings": ["b"]}], "model": "endings"}), (400,), "bad_input"),
    "a thousand brackets": (post(b"[" * 1000 + b"]" * 1000), (400,), "bad_json"),
    "a number too long": (post(b'{"inputs": [' + b"9" * 10000 + b"]}"), (400,), "bad_json"),
    "no input to look into": (post({}, "/view"), (400,), "bad_input"),
    "no question": (post({"top_k": 3}, "/search"), (400,), "bad_input"),
    "an empty question": (post({"question": " "}, "/search"), (400,), "bad_input"),
    "a thousand passages": (post({"question": "who?", "top_k": 1000}, "/search"), (400,), "bad_input"),
    "alternatives of a label": (post({"inputs": ["kan"], "alternatives": 3}), (400,), "bad_input"),
    "a condition on an unknown column": (post({"question": "who?", "where": ["lang=de"]}, "/search"), (400,), "bad_input"),
    "a condition without a value": (post({"question": "who?", "where": ["lang"]}, "/search"), (400,), "bad_input"),
    "an unknown order": (post({"question": "who?", "order": "best"}, "/search"), (400,), "bad_input"),
    # how large it is
    "too many inputs": (post({"inputs": ["kan"] * 21}), (413,), "too_large"),
    "too many tokens": (post({"inputs": ["kan lon min rur ten kar " * 20] * 18}), (413,), "too_large"),
    "texts to be left whole": (post({"inputs": ["kan"], "truncate": False}, "/embed"), (400,), "bad_input"),
    "tokens for OpenAI's path": (post({"input": [[11, 1 << 31]]}, "/v1/embeddings"), (400,), "bad_input"),
    "an unknown encoding": (post({"input": "kan", "encoding_format": "hex"}, "/v1/embeddings"), (400,), "bad_input"),
    "a model of OpenAI": (post({"input": "kan", "model": "text-embedding-3-small"}, "/v1/embeddings"), (404,), "no_model"),
    "to describe an unknown model": (request("/v1/models/star"), (404,), "no_model"),
    "too many tokens to embed": (post({"inputs": ["kan lon min rur ten kar " * 20] * 18}, "/embed"), (413,), "too_large"),
    "a large body": (post({"inputs": ["kan " * 6000]}), (413,), "too_large"),
    "a much larger body": (post({"inputs": ["kan " * 900_000]}), (413,), "too_large"),
    "a body of terabytes, it says": (raw("POST /predict HTTP/1.1", *JSON, "content-length: 9999999999999", body=GOOD), (413,), "too_large"),
    "a large body in chunks": (raw("POST /predict HTTP/1.1", *CHUNKED, body=chunked(*[b"x" * 5000] * 5)), (413,), "too_large"),
    "bytes of chunks": (raw("POST /predict HTTP/1.1", *CHUNKED, body=chunked(*[b" "] * 40_000)), (413,), "too_large"),
    # how it is written
    "Latin-1": (post('{"inputs": ["é"]}'.encode("latin-1")), (400,), "bad_json"),
    "UTF-16": (post('{"inputs": ["kan"]}'.encode("utf-16")), (400,), "bad_json"),
    "zero bytes": (post(b"\0" * 100), (400,), "bad_json"),
    "another type": (post(GOOD, content_type="text/plain"), (415,), "wrong_type"),
    "a form, as a page of another host may send": (post(GOOD, content_type="application/x-www-form-urlencoded"), (415,), "wrong_type"),
    "no type": (post(GOOD, content_type=None), (415,), "wrong_type"),
    "compressed": (post(gzip.compress(GOOD), content_encoding="gzip"), (400,), "bad_json"),
    # where and how
    "an unknown path": (request("/predcit"), (404,), "not_found"),
    "a path of a file": (request("/../../etc/passwd"), (404,), "not_found"),
    "a path with a slash more": (request("/predict/"), (404,), "not_found"),
    "GET of what takes POST": (request("/predict"), (405,), "method_not_allowed"),
    "DELETE": (request("/models", method="DELETE"), (405,), "method_not_allowed"),
    "CONNECT": (raw("CONNECT example.org:443 HTTP/1.1", "host: x"), (400, 404, 405), None),
    "the name of another's web page": (post(GOOD, host="rebind.example:8000", origin="http://rebind.example:8000"), (400,), "bad_host"),
    "an older HTTP without a host": (raw("GET /models HTTP/1.0"), (400,), "bad_host"),
    # what is no HTTP
    "two hosts": (raw("GET /models HTTP/1.1", "host: localhost", "host: rebind.example"), (400,), "bad_request"),
    "no host": (raw("GET /models HTTP/1.1"), (400,), "bad_request"),
    "no HTTP": (b"kan lon min\r\n\r\n", (400,), "bad_request"),
    "a greeting of TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(200)), (400,), "bad_request"),
    "two lengths": (raw("POST /predict HTTP/1.1", *JSON, "content-length: 19", "content-length: 20", body=GOOD), (400,), "bad_request"),
    "a chunk of no length": (raw("POST /predict HTTP/1.1", *CHUNKED, body=b"zz\r\nkan\r\n0\r\n\r\n"), (400,), "bad_request"),
    "a header without end": (b"GET /healthz HTTP/1.1\r\nx: " + b"a" * 1_000_000, (400, 0), None),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_request_gets_a_clear_answer_and_harms_nobody(name: str, server: Server) -> None:
    sent, statuses, code = BAD[name]
    with Connection(server.port) as connection:
        actual = connection.ask(sent)
        assert actual.status in statuses, actual
        if code is not None:
            assert actual.code == code
        if actual.headers.get("connection") == "close":
            assert connection.is_closed()
    assert ask(server.port, "/predict", {"inputs": ["kan"]}).status == 200


@pytest.mark.parametrize(
    ("path", "kind", "status"), [("/predict", "json", 413), ("/predict", "xml", 415), ("/no", "json", 404)]
)
def test_a_client_that_sends_all_before_it_reads_gets_the_refusal(
    path: str, kind: str, status: int, server: Server
) -> None:
    connection = http.client.HTTPConnection("localhost", server.port, timeout=60)
    headers = {"content-type": f"application/{kind}", "connection": "close"}  # as urllib.request sends it
    connection.request("POST", path, b" " * 40_000_000, headers)
    with contextlib.closing(connection):
        assert connection.getresponse().status == status


def test_requests_to_known_host_names_are_answered(server: Server) -> None:
    for host in ("localhost", "LocalHost:8000", "127.0.0.1:1", "[::1]:8000", "192.168.1.7", "bert.example"):
        answer = ask(server.port, "/models", host=host)
        assert (answer.status, answer.headers["x-content-type-options"]) == (200, "nosniff"), host


def test_right_token_is_accepted(python: Path, models: Path, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret-token\n")
    with serving(python, f"model_dir={models / 'stars'}", f"token={tmp_path / 'token'}", "host=0.0.0.0") as own:
        assert "which has no encryption; " in own.wait_for("^warning: .*")[0]
        own.wait_for(r"^serving stars on http://\S+, with a token; ")
        assert b"s3cret" not in Path(f"/proc/{own.process.pid}/cmdline").read_bytes()
        assert ask(own.port, "/healthz").status == ask(own.port, "/health").status == 200
        basic = base64.b64encode(b"anyone:s3cret-token").decode()
        for value in ("Bearer s3cret-token", f"Basic {basic}", f"basic {basic}"):
            assert ask(own.port, "/predict", {"inputs": ["kan"]}, authorization=value).status == 200, value
        for path in ("/", "/docs", "/docs/swagger-ui.css", "/models", "/metrics", "/openapi.json", "/nowhere"):
            for wrong in (
                None,
                "",
                "Bearer",
                "Bearer s3cret-toke",
                "Bearer s3cret-token2",
                "s3cret-token",
                "Basic !",
                "Basic eA==",
            ):
                answer = ask(own.port, path, authorization=wrong)
                code = "wrong_token" if wrong else "no_token"
                assert (answer.status, answer.code) == (401, code), (path, wrong)
                assert answer.headers["www-authenticate"] == 'Basic realm="bertkit", Bearer'
                assert answer.headers["x-content-type-options"] == "nosniff"
        assert ask(own.port, "/models", host="rebind.example", authorization="Bearer s3cret-token").code == "bad_host"


def test_a_wrong_token_is_refused(tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    refused(
        run(["serve", "model_dir=x", "port=0", f"token={tmp_path / 'none'}"]),
        "none: no such file; token= names a file",
        capsys,
    )
    os.mkfifo(tmp_path / "pipe")
    where = f"token={tmp_path / 'pipe'} is a folder, or not a regular file"
    refused(run(["serve", "model_dir=x", "port=0", f"token={tmp_path / 'pipe'}"]), where, capsys)
    file = tmp_path / "token"
    file.write_text("two words\n")
    refused(run(["serve", "model_dir=x", "port=0", f"token={file}"]), f"token={file}: expected letters, ", capsys)
    refused(run(["serve", "model_dir=x", "top_k=1000000000"]), "top_k=1000000000: expected", capsys)
    monkeypatch.setenv("BERTKIT_TOKEN", "")
    refused(run(["serve", "model_dir=x", "port=0"]), "the variable BERTKIT_TOKEN: expected letters, ", capsys)


def test_clients_that_send_a_byte_at_a_time_stop_nobody(server: Server) -> None:
    over = threading.Event()

    def drip(data: bytes) -> None:
        with Connection(server.port) as connection:
            for number in range(len(data)):
                if over.is_set():
                    return
                connection.send(data[number : number + 1])
                time.sleep(0.02)

    slow = [threading.Thread(target=drip, args=(post(b" " * 5000 + GOOD),)) for _ in range(10)]
    for each in slow:
        each.start()
    for _ in range(20):
        started_at = time.monotonic()
        assert ask(server.port, "/predict", {"inputs": ["kan"]}).status == 200
        assert time.monotonic() - started_at < 1
    over.set()
    for each in slow:
        each.join()


def test_clients_that_leave_or_send_no_more(server: Server) -> None:
    with Connection(server.port) as connection:  # half-closed, with half of a request
        connection.send(post(GOOD)[:-3])
        connection.socket.shutdown(socket.SHUT_WR)
        assert connection.is_closed()
    for sent in (post(GOOD), post(GOOD)[:-3], b"GET"):
        with Connection(server.port) as connection:
            connection.send(sent)
            connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # resets
    assert ask(server.port, "/predict", {"inputs": ["kan"]}).status == 200


def test_requests_one_after_another_on_a_connection(server: Server) -> None:
    """Answered in their order, also where they are sent at once, or the one before was refused."""
    with Connection(server.port) as connection:
        connection.send(post({"inputs": ["kan"]}) + request("/nowhere") + post(b"no JSON") + request("/healthz"))
        assert [connection.answer().status for _ in range(4)] == [200, 404, 400, 200]
        # as curl --http2 and Java begin
        offer = {
            "connection": "Upgrade, HTTP2-Settings",
            "upgrade": "h2c",
            "http2_settings": "AAMAAABkAARAAAAAAAIAAAAA",
        }
        assert connection.ask(request("/healthz", **offer)).status == 200
        assert connection.ask(post(GOOD, **offer)).status == 200
        actual = connection.ask(raw("POST /predict HTTP/1.1", *CHUNKED, body=chunked(GOOD[:5], GOOD[5:])))
        assert actual.status == 200
        connection.send(post(GOOD, expect="100-continue"))
        assert connection.file.readline() == b"HTTP/1.1 100 Continue\r\n"
        assert connection.file.readline() == b"\r\n"
        assert connection.answer().status == 200


def test_what_cannot_be_served_is_refused(
    models: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused(run(["serve", f"model_dir={models / 'stars'}", f"port={port}"]), f"port={port}: ", capsys)
    refused(run(["serve", f"model_dir={models / 'none'}", "port=0"]), "none", capsys)
    for change, line in (("workers=0", "workers=0: "), ("port=70000", "port=70000: "),
                         ("model_dir=[]", "model_dir=[]: "), ("request_seconds=0", "request_seconds=0")):  # fmt: skip
        refused(run(["serve", *([] if "model_dir" in change else ["model_dir=x"]), change]), line, capsys)
    monkeypatch.setitem(__import__("sys").modules, "uvloop", None)
    assert run(["serve", f"model_dir={models / 'stars'}", "port=0"]) == 2
    assert re.fullmatch(
        r"error: .*uvloop.*pip install '\.\[serve\]' in the directory of bertkit\n", capsys.readouterr().err
    )


def test_models_are_named_by_shortest_unique_path() -> None:
    def names(*directories: str) -> list[str]:
        arguments = [f"model_dir=[{','.join(directories)}]"]
        return list(build(ServeSettings, compose("serve", arguments)).names)

    assert names("runs/mrpc", "runs/stars/model", "org/name") == ["mrpc", "stars", "name"]
    assert names("a/model", "b/a") == ["a/model", "b/a"]


def test_error_message_is_one_line(server: Server) -> None:
    actual = ask(server.port, "/predict", {"inputs": [{"a\nb\u202e": 1}]})
    assert actual.code == "bad_input"
    assert "\\n" in json.loads(actual.body)["error"]["message"]
