"""SQuAD's JSON, nested or flat, to one flat record per question.

    {"data": [{"paragraphs": [{"context": ..., "qas": [{"id": ..., "question": ..., "answers": [...]}]}]}]}
    {"data": [{"id": ..., "question": ..., "context": ..., "answers": ...}]}

`plausible_answers` of SQuAD 2.0 are answers to another question, and are left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertkit.errors import InputError


def flatten(path: Path, text: str, data: list[Any]) -> Iterator[tuple[int, Any]]:
    """Give every record of `data`, the nested ones by question, with the line where its id stands in `text`.

    Raises:
        InputError: a level of the nesting is missing.
    """
    line, position = 1, -1
    for number, record in enumerate(data):
        for question in _questions(path, f"data[{number}]", record):
            found = text.find(json.dumps(str(question.get("id"))), position + 1) if isinstance(question, dict) else -1
            if found >= 0:
                line, position = line + text.count("\n", max(position, 0), found), found
            yield line, question


def _questions(path: Path, where: str, record: Any) -> Iterator[Any]:
    if not isinstance(record, dict) or "paragraphs" not in record:
        yield record
        return
    for n, paragraph in enumerate(_list(path, where, record, "paragraphs")):
        inside = f"{where}.paragraphs[{n}]"
        if not isinstance(paragraph, dict) or "context" not in paragraph:
            raise InputError(f"{path}: {inside}: no field 'context'; expected SQuAD's layout, with context and qas")
        for m, question in enumerate(_list(path, inside, paragraph, "qas")):
            if not isinstance(question, dict):
                raise InputError(f"{path}: {inside}.qas[{m}]: expected an object with id, question and answers")
            yield {**question, "context": paragraph["context"]}


def _list(path: Path, where: str, record: Any, field: str) -> list[Any]:
    if not isinstance(record.get(field), list):
        raise InputError(f"{path}: {where}: no list '{field}'; expected SQuAD's layout, data, paragraphs and qas")
    return list(record[field])
