"""What is asked and what is answered, as the OpenAPI of the server shows it; and how a model is presented to people."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, WithJsonSchema

from bertkit.serve.models import Served

# a model itself says what is wrong with its inputs: it knows its columns
Input = Annotated[Any, WithJsonSchema({
    "description": "a text, a pair of texts (or a list of words to be tagged), or a row as predict reads it",
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}, {"type": "object"}],
})]  # fmt: skip
Text = Annotated[Any, WithJsonSchema({"type": "string"})]
Inputs = Field(min_length=1, examples=[["A warm and funny film.", "It was too long."]])
Model = Field(None, description="the name of a model; the first one if left out")


class Body(BaseModel):
    """A request: no other fields, no other types."""

    model_config = ConfigDict(extra="forbid", strict=True)


class PredictBody(Body):
    """Inputs of a model that has a head."""

    inputs: list[Input] = Inputs
    model: str | None = Model
    alternatives: int = Field(0, ge=0, le=20, description="so many answers of each question, the best first")


class EmbedBody(Body):
    """Texts of any model."""

    inputs: list[Text] = Inputs
    model: str | None = Model


class ViewBody(Body):
    """An input of any model."""

    input: Input
    model: str | None = Model


class SearchBody(Body):
    """A question to the library."""

    question: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
    order: Literal["search", "bert", "both"] | None = None
    top_k: int = Field(10, ge=1, le=100)


class Predictions(BaseModel):
    """What `predict` writes of each input."""

    predictions: list[dict[str, Any]]


class Vectors(BaseModel):
    """A vector for each text."""

    model: str
    vectors: list[list[float]]


class Passages(BaseModel):
    """Passages, the best first: the row of `search` for each, with its scores and the answer in it."""

    answers: list[dict[str, Any]]
    order: str
    seconds: float


class Fault(BaseModel):
    """Why there is no answer: a word for programs, and a line for people."""

    code: str
    message: str


class Problem(BaseModel):
    """The answer to a request that gets none."""

    error: Fault


# an input of each kind, as a page offers them
EXAMPLES: dict[str, list[Any]] = {
    "sequence": ["A warm and funny film that I would gladly see again.", "It was too long, and nothing in it was new."],
    "pair": [["The company sold the ship in May.", "In May the ship was sold by the company."]],
    "tagging": ["Johanson lives in Ulaanbaatar and works for the United Nations."],
    "spans": [["Where was the bridge built?", "The bridge was built in Prague in 1357. It has sixteen arches."]],
    "choice": [{"context": "She opens the oven.", "endings": ["She takes the bread out.", "She swims away."]}],
    "generation": ["The bridge was built in Prague.", "It rained all day, so we stayed at home."],
    "fill_mask": ["Paris is the [MASK] of France.", "It [MASK] all day, so we stayed at [MASK]."],
    "embedding": ["A cat sits on the mat.", "There is a cat on the carpet."],
    "next_sentence": [["It rained all day.", "So we stayed at home."]],
}


def described(model: Served) -> dict[str, Any]:
    """Say what it is, for `/models` and for the page."""
    columns, task = model.predictor.task.columns, model.predictor.task
    names = {
        "spans": (columns.question, columns.context),
        "choice": (columns.context, columns.ending_start, columns.endings),
        "sequence": (columns.text, columns.text_pair),
        "generation": (columns.source,),
        "next_sentence": ("text", "text_pair"),
    }.get(model.kind, ("text",))
    needs_pair = model.kind in ("spans", "next_sentence") or (model.kind == "sequence" and task.needs_pair)
    return {
        "name": model.name,
        "kind": model.kind,
        "labels": list(model.predictor.labels),
        "columns": [_first(column) for column in names if column is not None],
        "needs_pair": needs_pair,
        "examples": _examples(model, needs_pair),
    }


def _examples(model: Served, needs_pair: bool) -> list[Any]:
    if model.kind != "choice":
        return EXAMPLES["pair" if needs_pair and model.kind == "sequence" else model.kind]
    columns, (example,) = model.predictor.task.columns, EXAMPLES["choice"]
    endings = columns.endings
    row = {_first(columns.context): example["context"]}
    if columns.ending_start is not None:
        row[_first(columns.ending_start)] = "She"
    if isinstance(endings, tuple):
        named: dict[str, Any] = {_first(name): example["endings"][n % 2] for n, name in enumerate(endings)}
    else:
        named = {_first(endings): example["endings"]}
    return [row | named]


def _first(column: Any) -> str:
    return str(column[0] if isinstance(column, tuple) else column)
