"""Clients of other servers: the packages of OpenAI, langchain and Hugging Face, and plain requests with their fields."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import headed_model
from huggingface_hub import InferenceClient
from serving import Connection, Server, ask, request, serving

from bertkit import __version__, export_model, load_embedder
from bertkit.data.corpus.tokenizer import Tokenizer

TEXTS = ["kan lon", "min rur ten", "", "kar"]
TOKEN = "s3cret-token"
BEARER = {"authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def folder(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name, heads in {"bare": (), "stars": ("sequence",)}.items():
        export_model(headed_model(tokenizer, *heads, max_position_embeddings=97), tokenizer, folder / name)
    (folder / "bare" / "sentence_bert_config.json").write_text('{"max_seq_length": 31, "do_lower_case": false}')
    return folder


@pytest.fixture(scope="module")
def server(python: Path, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    file = tmp_path_factory.mktemp("secret") / "token"
    file.write_text(TOKEN)
    with serving(python, f"model_dir=[{folder / 'bare'},{folder / 'stars'}]", f"token={file}") as result:
        yield result


@pytest.fixture(scope="module")
def vectors(folder: Path) -> np.ndarray:
    return load_embedder(folder / "bare", device="cpu")(TEXTS)


def test_responses_have_the_shapes_of_openai(server: Server, vectors: np.ndarray, folder: Path) -> None:
    body = {"input": TEXTS, "model": "bare"}
    numbers = ask(server.port, "/v1/embeddings", body, **BEARER).json
    encoded = ask(server.port, "/v1/embeddings", {**body, "encoding_format": "base64"}, **BEARER).json
    assert set(numbers) == {"object", "data", "model", "usage"}
    assert (numbers["object"], numbers["model"]) == ("list", "bare")
    num_tokens = sum(map(len, load_embedder(folder / "bare", device="cpu").tokenizer(TEXTS)["input_ids"]))
    assert numbers["usage"] == encoded["usage"] == {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    for place, (plain, packed) in enumerate(zip(numbers["data"], encoded["data"], strict=True)):
        assert set(plain) == set(packed) == {"object", "index", "embedding"}
        assert (plain["object"], plain["index"]) == ("embedding", place)
        np.testing.assert_allclose(plain["embedding"], vectors[place], atol=1e-6)
        np.testing.assert_array_equal(
            np.frombuffer(base64.b64decode(packed["embedding"]), "<f4"), np.float32(plain["embedding"])
        )
    single = ask(server.port, "/v1/embeddings", {"input": TEXTS[0]}, **BEARER).json["data"]
    np.testing.assert_allclose([one["embedding"] for one in single], vectors[:1], atol=1e-6)
    listed = ask(server.port, "/v1/models", **BEARER).json
    assert [one["id"] for one in listed["data"]] == ["bare", "stars"]
    assert ask(server.port, "/v1/models/stars", **BEARER).json == listed["data"][1]
    assert {tuple(one) for one in listed["data"]} == {("id", "object", "created", "owned_by")}
    fault = ask(server.port, "/v1/embeddings", {"input": "kan", "model": "other"}, **BEARER)
    assert fault.code == "no_model"
    assert fault.json["error"] == {
        "message": "no model 'other'; there are bare, stars", "type": "invalid_request_error", "param": None, "code": "no_model",
    }  # fmt: skip


def test_paths_of_text_embeddings_inference(server: Server, vectors: np.ndarray) -> None:
    for path in ("/embed", "/"):
        for inputs, expected in ((TEXTS, vectors), (TEXTS[0], vectors[:1])):
            actual = ask(server.port, path, {"inputs": inputs, "truncate": True, "normalize": True}, **BEARER)
            np.testing.assert_allclose(actual.json, expected, atol=1e-6)
    assert ask(server.port, "/health").status == 200
    assert b"bertkit_requests_total" in ask(server.port, "/metrics", **BEARER).body
    assert ask(server.port, "/info", **BEARER).json == {
        "model_id": "bare", "model_dtype": "float32", "model_type": {"embedding": {"pooling": "mean"}}, "auto_truncate": True,
        "max_input_length": 31, "max_concurrent_requests": 256, "max_client_batch_size": 256, "max_batch_tokens": 2048,
        "version": __version__,
    }  # fmt: skip


def test_habits_of_clients_are_taken(server: Server, vectors: np.ndarray, folder: Path) -> None:
    """Fields without an effect, null for a field that is left out, ids of tokens, a byte order mark, HEAD."""
    openai = {"input": TEXTS, "user": "me", "encoding_format": None, "dimensions": None, "model": None}
    ids = load_embedder(folder / "bare", device="cpu").tokenizer(TEXTS)["input_ids"]
    for body in (openai, {"input": ids}, {"input": [text[1:-1] for text in ids]}, {"input": [TEXTS[0], *ids[1:]]}):
        data = ask(server.port, "/v1/embeddings", body, **BEARER).json["data"]
        np.testing.assert_allclose([one["embedding"] for one in data], vectors, atol=1e-6)
    single = ask(server.port, "/v1/embeddings", {"input": ids[1]}, **BEARER).json["data"]
    np.testing.assert_allclose([one["embedding"] for one in single], vectors[1:2], atol=1e-6)
    body = {"inputs": TEXTS, "truncate": None, "normalize": None, "prompt_name": None}
    np.testing.assert_allclose(ask(server.port, "/embed", body, **BEARER).json, vectors, atol=1e-6)
    marked = b"\xef\xbb\xbf" + json.dumps({"inputs": TEXTS}).encode()
    np.testing.assert_allclose(ask(server.port, "/embed", marked, **BEARER).json, vectors, atol=1e-6)
    for path in ("/", "/health", "/models"):
        with Connection(server.port) as connection:
            connection.send(request(path, method="HEAD", **BEARER) + request("/health"))
            assert connection.file.readline().split()[1] == b"200"
            lines = [*iter(lambda: connection.file.readline().strip(), b"")]  # and no body: the next answer follows
            assert any(line.startswith(b"content-length: ") for line in lines)
            assert connection.answer().json == {"status": "ready"}


def test_the_openai_package(server: Server, vectors: np.ndarray) -> None:
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key=TOKEN, max_retries=0)
    for more in ({}, {"encoding_format": "float"}):
        response = client.embeddings.create(model="bare", input=TEXTS, **more)
        np.testing.assert_allclose([one.embedding for one in response.data], vectors, atol=1e-6)
        assert response.usage.total_tokens > len(TEXTS)
    assert [one.id for one in client.models.list()] == ["bare", "stars"]
    assert client.models.retrieve("stars").owned_by == "bertkit"
    with pytest.raises(openai.NotFoundError, match="no model 'other'") as refused:
        client.embeddings.create(model="other", input="kan")
    assert (refused.value.code, refused.value.type) == ("no_model", "invalid_request_error")
    with pytest.raises(openai.BadRequestError, match="expected ids of the model's tokenizer"):
        client.embeddings.create(model="bare", input=[[11, 100_000]])
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=client.base_url, api_key="wrong").models.list()


def test_the_client_of_langchain(server: Server, vectors: np.ndarray) -> None:
    langchain = pytest.importorskip("langchain_openai")
    embeddings = langchain.OpenAIEmbeddings(
        base_url=f"http://127.0.0.1:{server.port}/v1", api_key=TOKEN, model="bare", check_embedding_ctx_length=False
    )
    np.testing.assert_allclose(embeddings.embed_documents(TEXTS), vectors, atol=1e-6)
    np.testing.assert_allclose(embeddings.embed_query(TEXTS[0]), vectors[0], atol=1e-6)


def test_the_client_of_hugging_face(server: Server, vectors: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which haystack and others use for text-embeddings-inference, mostly without a path."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    for path in ("", "/embed"):
        client = InferenceClient(f"http://127.0.0.1:{server.port}{path}", token=TOKEN)
        for more in ({}, {"truncate": True, "normalize": True}):
            np.testing.assert_allclose(client.feature_extraction(TEXTS, **more), vectors, atol=1e-6)
        np.testing.assert_allclose(client.feature_extraction(TEXTS[0]), vectors[:1], atol=1e-6)
