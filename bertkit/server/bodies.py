"""The fields of requests and responses, as OpenAPI lists them, and the description of a model."""

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, WithJsonSchema

from bertkit.server.models import ServedModel
from bertkit.tasks.task_config import first_name

# the model checks its inputs, since only it knows their columns
Input = Annotated[object, WithJsonSchema({
    "description": "a text, a pair of texts (or a list of words to be tagged), or a row as predict reads it",
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}, {"type": "object"}],
})]  # fmt: skip
Text = Annotated[object, WithJsonSchema({"type": "string"})]


def _as_list(value: object) -> object:
    return value if isinstance(value, list) else [value]


OneOrMoreInputs = Annotated[list[Input], BeforeValidator(_as_list, json_schema_input_type=Input | list[Input])]
OneOrMoreTexts = Annotated[list[Text], BeforeValidator(_as_list, json_schema_input_type=Text | list[Text])]
Inputs = Field(min_length=1, examples=[["A warm and funny film.", "It was too long."]])
Model = Field(None, description="the name of a model; the first one if left out")


class Body(BaseModel):
    """A request; unknown fields and wrong types are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class PredictBody(Body):
    """Inputs for a model with a head."""

    inputs: OneOrMoreInputs = Inputs
    model: str | None = Model
    alternatives: int = Field(0, ge=0, le=20, description="number of answers to each question, the best first")


class EmbedBody(Body):
    """Texts for any model."""

    inputs: OneOrMoreTexts = Inputs
    model: str | None = Model


class ViewBody(Body):
    """An input for any model."""

    input: Input
    model: str | None = Model


class SearchBody(Body):
    """A question to the library."""

    question: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
    order: Literal["search", "bert", "both"] | None = None
    top_k: int = Field(10, ge=1, le=100)


class Predictions(BaseModel):
    """The row that `predict` writes, for each input."""

    predictions: list[dict[str, object]]


class Vectors(BaseModel):
    """A vector for each text."""

    model: str
    vectors: list[list[float]]


class Passages(BaseModel):
    """Passages, the best first: the rows that `search` writes, with scores and answers."""

    answers: list[dict[str, object]]
    order: str
    has_odds: bool  # whether score_bert is the log odds of an answer; false: it only ranks passages
    seconds: float


class Fault(BaseModel):
    """An error: a code for programs, and a message for people."""

    code: str
    message: str


class Problem(BaseModel):
    """The response to a refused or failed request."""

    error: Fault


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
