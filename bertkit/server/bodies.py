"""The fields of requests and responses, as OpenAPI lists them, and the description of a model."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, WithJsonSchema

from bertkit.server.models import ServedModel

# the model checks its inputs, since only it knows their columns
Input = Annotated[Any, WithJsonSchema({
    "description": "a text, a pair of texts (or a list of words to be tagged), or a row as predict reads it",
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}, {"type": "object"}],
})]  # fmt: skip
Text = Annotated[Any, WithJsonSchema({"type": "string"})]
Inputs = Field(min_length=1, examples=[["A warm and funny film.", "It was too long."]])
Model = Field(None, description="the name of a model; the first one if left out")


class Body(BaseModel):
    """A request; unknown fields and wrong types are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class PredictBody(Body):
    """Inputs for a model with a head."""

    inputs: list[Input] = Inputs
    model: str | None = Model
    alternatives: int = Field(0, ge=0, le=20, description="number of answers to each question, the best first")


class EmbedBody(Body):
    """Texts for any model."""

    inputs: list[Text] = Inputs
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

    predictions: list[dict[str, Any]]


class Vectors(BaseModel):
    """A vector for each text."""

    model: str
    vectors: list[list[float]]


class Passages(BaseModel):
    """Passages, the best first: the rows that `search` writes, with scores and answers."""

    answers: list[dict[str, Any]]
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


# example inputs for each kind of model
EXAMPLES: dict[str, list[Any]] = {
    "sequence": ["A warm and funny film that I would gladly see again.", "It was too long, and nothing in it was new."],
    "pair": [["The company sold the ship in May.", "In May the ship was sold by the company."]],
    "tagging": ["Johanson lives in Ulaanbaatar and works for the United Nations."],
    "spans": [["Where was the bridge built?", "The bridge was built in Prague in 1357. It has sixteen arches."]],
    "choice": [{"context": "She opens the oven.", "endings": ["She takes the bread out.", "She swims away."]}],
    "generation": ["The bridge was built in Prague.", "It rained all day, so we stayed at home."],
    "continuation": ["Once upon a time", "It rained all day, so"],
    "fill_mask": ["Paris is the [MASK] of France.", "It [MASK] all day, so we stayed at [MASK]."],
    "embedding": ["A cat sits on the mat.", "There is a cat on the carpet."],
    "next_sentence": [["It rained all day.", "So we stayed at home."]],
}


def describe_model(model: ServedModel) -> dict[str, Any]:
    """Describe a model for `/models` and for the page."""
    shape, task = model.predictor.shape, model.predictor.task
    columns = [getattr(task.columns, name) for name in shape.text_columns]
    examples = EXAMPLES["pair" if model.kind == "sequence" and task.needs_pair else model.kind]
    if shape.has_choices:
        columns = [task.columns.context, task.columns.ending_start, task.columns.endings]
        examples = [_choice(*columns)]
    if model.kind in ("tagging", "fill_mask", "embedding"):
        columns = ["text"]
    return {
        "name": model.name,
        "kind": model.kind,
        "labels": list(model.predictor.labels),
        "columns": [_first(column) for column in columns if column is not None],
        "needs_pair": shape.needs_pair or task.needs_pair,
        "examples": examples,
    }


def _choice(context: Any, start: Any, endings: Any) -> dict[str, Any]:
    """Return the example of multiple choice, with the column names of a task."""
    (example,) = EXAMPLES["choice"]
    row = {_first(context): example["context"]}
    if start is not None:
        row[_first(start)] = "She"
    if isinstance(endings, tuple):
        return row | {_first(name): example["endings"][n % 2] for n, name in enumerate(endings)}
    return row | {_first(endings): example["endings"]}


def _first(column: Any) -> str:
    return str(column[0] if isinstance(column, tuple) else column)
