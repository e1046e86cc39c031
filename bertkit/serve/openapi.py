"""What the server says of itself: its models, and all of it as OpenAPI 3.1.

Source: OpenAPI Specification 3.1.0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bertkit.serve.models import Served
from bertkit.settings.serve import ServeSettings

TEXT, NUMBER, WHOLE = {"type": "string"}, {"type": "number"}, {"type": "integer"}
REASONS = {
    "400": "the request is wrong; the message says where",
    "404": "there is no such model, path or library",
    "408": "the request came too slowly",
    "413": "the request is too large",
    "415": "the body is not announced as JSON in UTF-8",
    "429": "too many requests wait; Retry-After says for how long",
    "503": "the request waited too long, or the server loads or stops",
}

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
MOST_ALTERNATIVES = 20  # as many as SQuAD's own files have


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


def description(settings: ServeSettings, models: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Describe every path, with examples of the models that are served."""
    names = [model["name"] for model in models]
    model = {"type": "string", "enum": names, "default": names[0], "description": "which model; the first if left out"}
    given = {
        "description": "a text, a pair of texts (or a list of words to be tagged), or a row as predict reads it",
        "anyOf": [TEXT, {"type": "array", "items": TEXT}, {"type": "object"}],
    }
    shown = {each["name"]: {"value": {"inputs": each["examples"], "model": each["name"]}} for each in models}
    heads = {name: value for name, value in shown.items() if _kind(models, name) != "embedding"}
    texts = {names[0]: {"value": {"inputs": ["A cat sits on the mat.", "There is a cat."]}}}
    looks = {name: {"value": {"input": each["value"]["inputs"][0], "model": name}} for name, each in shown.items()}
    question = {"question": {"value": {"question": "Who built the bridge?", "order": "both", "top_k": 5}}}
    vector = {"type": "array", "items": NUMBER}
    search = {"question": TEXT, "order": {"enum": ["search", "bert", "both"]},
              "top_k": {**WHOLE, "minimum": 1, "maximum": 100, "default": 10}}  # fmt: skip
    answers = {**WHOLE, "minimum": 0, "maximum": MOST_ALTERNATIVES, "default": 0,
               "description": "so many answers of each question, the best first; of models for questions"}  # fmt: skip
    paths = {
        "/predict": _post("What a model says of each input, as predict writes it", heads,
                          {"inputs": _list(given, settings.max_inputs), "model": model, "alternatives": answers}, ["inputs"],
                          _object({"predictions": _list({"type": "object"})})),
        "/embed": _post("A vector for each text", texts,
                        {"inputs": _list(TEXT, settings.max_inputs), "model": model}, ["inputs"],
                        _object({"model": TEXT, "vectors": _list(vector)})),
        "/view": _post("A page that shows what a model attends to, and what its prediction rests on", looks,
                       {"input": given, "model": model}, ["input"], None),
        "/search": _post("Passages of the library, and the answers in them", question, search, ["question"],
                         _object({"answers": _list(_answer()), "order": TEXT, "seconds": NUMBER})),
        "/models": _get("The models", _json(_object({"models": _list({"type": "object"}), "has_search": {"type": "boolean"}}))),
        "/healthz": _get("200 when the server is ready", _json(_object({"status": TEXT})), "503"),
        "/metrics": _get("Figures in Prometheus' text format", {"text/plain": {"schema": TEXT}}),
        "/openapi.json": _get("This description", _json({"type": "object"})),
        "/": _get("A page to try the models", {"text/html": {"schema": TEXT}}),
    }  # fmt: skip
    error = _object({"error": _object({"code": TEXT, "message": TEXT})})
    return {
        "openapi": "3.1.0",
        "info": {"title": "bertkit serve", "version": "1", "summary": f"Models: {', '.join(names)}"},
        "paths": paths,
        "components": {"schemas": {"Error": error}},
    }


def _post(
    summary: str, examples: Mapping[str, Any], fields: Mapping[str, Any], needed: Sequence[str], found: Any
) -> dict[str, Any]:
    """Describe a path that takes JSON, and gives an object, or a page where that is None."""
    schema = {"type": "object", "properties": fields, "required": needed, "additionalProperties": False}
    body = {"required": True, "content": {"application/json": {"schema": schema, "examples": examples}}}
    content = {"text/html": {"schema": TEXT}} if found is None else _json(found)
    return {"post": {"summary": summary, "requestBody": body, "responses": _responses(content, *REASONS)}}


def _get(summary: str, content: Mapping[str, Any], *reasons: str) -> dict[str, Any]:
    return {"get": {"summary": summary, "responses": _responses(content, *reasons)}}


def _responses(content: Mapping[str, Any], *reasons: str) -> dict[str, Any]:
    wrong = _json({"$ref": "#/components/schemas/Error"})
    of_errors = {status: {"description": REASONS[status], "content": wrong} for status in reasons}
    return {"200": {"description": "the answer", "content": content}, **of_errors}


def _answer() -> dict[str, Any]:
    texts = {key: {"type": ["string", "null"]} for key in ("passage", "title", "source", "place")}
    scores = {key: {"type": ["number", "null"]} for key in ("score_search", "score_bert", "score")}
    return _object(
        {
            **texts,
            **scores,
            "answer": {"type": ["string", "null"]},
            **{key: {"type": ["integer", "null"]} for key in ("start", "end")},
        }
    )


def _object(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": fields}


def _list(items: Mapping[str, Any], most: int | None = None) -> dict[str, Any]:
    return {"type": "array", "items": items} | ({} if most is None else {"minItems": 1, "maxItems": most})


def _json(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _kind(models: Sequence[Mapping[str, Any]], name: str) -> Any:
    return next(each["kind"] for each in models if each["name"] == name)


def _first(column: Any) -> str:
    return str(column[0] if isinstance(column, tuple) else column)
