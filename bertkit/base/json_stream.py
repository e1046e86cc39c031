"""Reads the values of a JSON file one after another."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertkit.base.errors import InputError
from bertkit.base.text_files import TOO_DEEP, TOO_LARGE, WHOLE_MB, is_deep

_BETWEEN = re.compile(r"[\s,\ufeff]*")


def json_values(name: Path | str, blocks: Iterator[tuple[int, str]]) -> Iterator[tuple[int, Any, str]]:
    """Yield the elements of an array, or the values that follow one another, each with its line; one at a time is in memory.

    The third item is the value's text; it is empty for the elements of an array.

    Raises:
        InputError: a value is not JSON, is nested too deeply, or has more than WHOLE_MB.
    """
    decoder, text, position, line, is_array = json.JSONDecoder(), "", 0, 1, None

    def has_more() -> bool:
        """Drop what was read, and read as much again as is left."""
        nonlocal text, position
        parts, size = [text[position:]], 0
        if len(parts[0]) > WHOLE_MB * 1_000_000:
            raise InputError(f"{name}:{line}: a value {TOO_LARGE}; write it as lines (.jsonl)")
        for _, block in blocks:
            parts.append(block)
            size += len(block)
            if size and size >= len(parts[0]):
                break
        if size:
            text, position = "".join(parts), 0
        return size > 0

    while True:
        start, position = position, _BETWEEN.match(text, position).end()  # type: ignore[union-attr]
        line += text.count("\n", start, position)
        if position == len(text) and has_more():
            continue
        if is_array is None:
            is_array = text[position : position + 1] == "["
            position += is_array
            continue
        if text[position : position + 1] == ("]" if is_array else ""):
            return
        value, end, fault = None, position, ""
        try:
            value, end = decoder.raw_decode(text, position)
            is_cut = end > len(text) - 3  # a number may go on, with "e+1" at most two characters later
            fault = TOO_DEEP if is_deep(value) else ""
        except RecursionError:
            is_cut, fault = False, TOO_DEEP
        except ValueError as error:
            fault = getattr(error, "msg", "a number with too many digits")
            is_cut = getattr(error, "pos", 0) > len(text) - 16 or fault.startswith("Unterminated")
        if is_cut and has_more():
            continue
        if fault:
            raise InputError(f"{name}:{line}: not JSON ({fault}); restore the file")
        yield line, value, "" if is_array else text[position:end]
        line += text.count("\n", position, end)
        position = end
