"""The inputs of requests to `/predict` and `/view`, and what is wrong with them."""

import dataclasses
import re
from collections.abc import Sequence

from bertkit.base.errors import InputError
from bertkit.base.typed_settings import without_none
from bertkit.tasks.feature import Feature
from bertkit.tasks.task import AnyTask, Example

JSON_TYPES = {str: "a text", int: "a number", float: "a number", list: "a list", dict: "an object",
              bool: "true or false", type(None): "null"}  # fmt: skip


@dataclasses.dataclass(slots=True)
class Input:
    """An input of a request."""

    request: int  # index of the request
    index: int  # within the request
    value: object
    task: AnyTask  # predicts this input
    examples: list[Example] = dataclasses.field(default_factory=list)  # one, when it has been read
    features: list[Feature] = dataclasses.field(default_factory=list)


def as_read(value: object, task: AnyTask) -> object:
    """Turn a list of two texts into a tuple, which JSON lacks, unless it is a list of words; leave out the fields of a row that are null."""
    match value:
        case [str(), str()] if not task.has_words:
            return tuple(value)
        case dict():
            return without_none(value)
    return value


def wrong_type(number: int, one: Input) -> str | None:
    """Return the problem that an input, the `number`-th of those that are read together, is no text, list or row."""
    if isinstance(one.value, (str, tuple, list, dict)):
        return None
    return f"inputs: row {number}: {JSON_TYPES[type(one.value)]}, expected a text, a list or an object"


def lines_of(error: InputError | None, inputs: Sequence[Input]) -> list[str]:
    """Return what is wrong with inputs, by their indices in the request, from 0, without the advice for the command line."""
    lines = []
    for line in () if error is None else map(str, error.args):
        place = re.match(r"inputs: row (\d+)", line)
        if place is not None and 0 < int(place[1]) <= len(inputs):
            line = f"inputs[{inputs[int(place[1]) - 1].index}]{line[place.end() :]}"
        lines.append(re.sub(r"(;|,? or) set (task\.\S+|format=)[^;]*$", "", line))
    return lines
