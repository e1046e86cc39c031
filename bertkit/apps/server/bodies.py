"""The fields of requests and responses, as OpenAPI lists them, and the description of a model."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    RootModel,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)

from bertkit import __version__
from bertkit.apps.server.models import ServedModel
from bertkit.base.errors import shown
from bertkit.settings.serve import ServeSettings
from bertkit.tasks.task_config import first_name

# the model checks its inputs, since only it knows their columns
Input = Annotated[object, WithJsonSchema({
    "description": "a text, a pair of texts (or a list of words to be tagged), or a row as predict reads it",
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}, {"type": "object"}],
})]  # fmt: skip
Text = Annotated[object, WithJsonSchema({"type": "string"})]
TextOrIds = Annotated[object, WithJsonSchema({
    "description": "a text, or the ids of its tokens by the model's own tokenizer",
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}],
})]  # fmt: skip


def _as_list(value: object) -> object:
    return value if isinstance(value, list) else [value]


def _as_texts(value: object) -> object:
    is_ids = isinstance(value, list) and value != [] and all(type(one) is int for one in value)
    return [value] if is_ids else _as_list(value)


OneOrMoreInputs = Annotated[list[Input], BeforeValidator(_as_list, json_schema_input_type=Input | list[Input])]
OneOrMoreTexts = Annotated[list[Text], BeforeValidator(_as_list, json_schema_input_type=Text | list[Text])]
Inputs = Field(min_length=1, examples=[["A warm and funny film.", "It was too long."]])
Model = Field(None, description="the name of a model; the first one if left out", examples=[None])


class Body(BaseModel):
    """A request; unknown fields and wrong types are refused. null is the same as leaving a field out, as many clients do."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, fields: object) -> object:
        return {k: v for k, v in fields.items() if v is not None} if isinstance(fields, dict) else fields


class PredictBody(Body):
    """Inputs for a model with a head."""

    inputs: OneOrMoreInputs = Inputs
    model: str | None = Model
    alternatives: int = Field(0, ge=0, le=20, description="number of answers to each question, the best first")


class EmbedBody(Body):
    """Texts for any model; the fields, and the response, are those of text-embeddings-inference."""

    inputs: OneOrMoreTexts = Inputs
    model: str | None = Model
    normalize: bool | None = Field(
        default=None, description="whether vectors have length 1; null: as the model's directory says"
    )
    truncate: Literal[True] = Field(default=True, description="texts that are too long are always cut")


class OpenAIBody(Body):
    """OpenAI's request to embed texts."""

    input: Annotated[
        list[TextOrIds], BeforeValidator(_as_texts, json_schema_input_type=TextOrIds | list[TextOrIds])
    ] = Inputs
    model: str | None = Model
    encoding_format: Literal["float", "base64"] = "float"
    user: str = Field("", description="no effect")


class ViewBody(Body):
    """An input for any model."""

    input: Input
    model: str | None = Model


class SearchBody(Body):
    """A question to the library."""

    question: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
    order: Literal["search", "vectors", "hybrid", "bert", "both"] | None = None
    top_k: int = Field(10, ge=1, le=100)
    where: list[Annotated[str, StringConstraints(pattern="=")]] = Field(
        [], description="values of the documents' columns, such as lang=de", examples=[[]]
    )


class Predictions(BaseModel):
    """The row that `predict` writes, for each input."""

    predictions: list[dict[str, object]]


class Vectors(RootModel[list[list[float]]]):
    """A vector for each text."""


class OpenAIVector(BaseModel):
    """The vector of a text, as OpenAI sends it."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str  # numbers, or the bytes of float32 in base64


class Usage(BaseModel):
    """The number of tokens in a request."""

    prompt_tokens: int
    total_tokens: int


class OpenAIVectors(BaseModel):
    """A vector for each text, as OpenAI sends them."""

    object: Literal["list"]
    data: list[OpenAIVector]
    model: str
    usage: Usage


class OpenAIModel(BaseModel):
    """A model, as OpenAI describes it."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class OpenAIModels(BaseModel):
    """All models, as OpenAI describes them."""

    object: Literal["list"]
    data: list[OpenAIModel]


class Passages(BaseModel):
    """Passages, the best first: the rows that `search` writes, with scores and answers."""

    answers: list[dict[str, object]]
    order: str
    has_odds: bool  # whether score_bert is the log odds of an answer; false: it only ranks passages
    is_cut: bool  # whether a model has read only the beginning of the question; BM25 uses all words
    seconds: float


class Fault(BaseModel):
    """An error: a code for programs, and a message for people; the fields are those of OpenAI."""

    code: str
    message: str
    type: Literal["invalid_request_error", "server_error"]
    param: None


class Problem(BaseModel):
    """The response to a refused or failed request."""

    error: Fault


def error_json(status: int, code: str, message: str) -> str:
    """Write the response to a refused or failed request."""
    kind: Literal["server_error", "invalid_request_error"] = (
        "server_error" if status >= 500 else "invalid_request_error"
    )
    fault = Fault(code=code, message=shown(message), type=kind, param=None)
    return Problem(error=fault).model_dump_json()


EXPECTED = {  # by the type of pydantic's error, with its context
    "string_type": "a text", "string_too_short": "a text that is not blank", "string_pattern_mismatch": "a text with {pattern} in it",
    "int_type": "a whole number", "greater_than_equal": "at least {ge}", "less_than_equal": "at most {le}",
    "bool_type": "true or false", "literal_error": "{expected}", "list_type": "a list", "too_short": "at least one item",
    "model_type": "an object", "model_attributes_type": "an object", "dict_type": "an object",
}  # fmt: skip
_FAULTS = {
    "missing": "missing; GET /openapi.json lists all fields",
    "extra_forbidden": "unknown field; leave it out, or GET /openapi.json for all fields",
    "string_unicode": "contains half of a surrogate pair; remove it",
}


def wrong_field(error: Mapping[str, Any]) -> str:
    """Return what is wrong with a field of a request, from an error of pydantic: where it is, what it is, and what is expected."""
    names = [f"[{name}]" if isinstance(name, int) else f".{name}" for name in error["loc"][1:]]
    where, kind = "".join(names)[1:101] or "the body", error["type"]
    if kind not in EXPECTED:
        return f"{where}: {_FAULTS.get(kind, error['msg'])}"
    expected = EXPECTED[kind].format(**error.get("ctx", {})).replace("True", "true")
    return f"{where}: {json.dumps(error['input'], ensure_ascii=False):.80}; expected {expected}"


DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
TO_EMBED = ["A cat sits on the mat.", "There is a cat on the carpet."]


def describe_model(model: ServedModel) -> dict[str, object]:
    """Describe a model for `/models` and for the page."""
    task = model.predictor.task
    takes_texts = model.kind in ("tagging", "fill_mask", "embedding")
    columns = ["text"] if takes_texts else [first_name(column) for column in task.input_columns() if column is not None]
    return {
        "name": model.name,
        "kind": model.kind,
        "labels": list(task.labels),
        "columns": columns,
        "needs_pair": task.needs_pair,
        "examples": TO_EMBED if model.kind == "embedding" else task.page_inputs(),
    }


def describe_for_openai(model: ServedModel) -> dict[str, object]:
    """Describe a model as OpenAI's `/v1/models` does."""
    return {"id": model.name, "object": "model", "created": int(model.loaded_at), "owned_by": "bertkit"}


def describe_server(model: ServedModel, settings: ServeSettings, batch_tokens: int) -> dict[str, object]:
    """Describe a model and the limits as text-embeddings-inference's `/info` does."""
    labels = {str(number): label for number, label in enumerate(model.predictor.task.labels)}
    classifier = {"id2label": labels, "label2id": {label: number for number, label in labels.items()}}
    return {
        "model_id": model.name,
        "model_dtype": DTYPES[settings.precision],
        "model_type": {"classifier": classifier}
        if model.kind == "sequence"
        else {"embedding": {"pooling": model.pooling}},
        "max_input_length": model.max_length,
        "max_concurrent_requests": settings.queue_requests,
        "max_client_batch_size": settings.max_inputs,
        "max_batch_tokens": batch_tokens,
        "auto_truncate": True,
        "version": __version__,
    }
