"""Reads the values of a JSON file one after another; the texts inside the fields of a record."""

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from bertkit.base.errors import InputError
from bertkit.base.text_files import TOO_DEEP, TOO_LARGE, WHOLE_MB, JsonValue, is_deep, of_distinct_keys

_BETWEEN = re.compile(r"[\s,\ufeff]*")


def json_values(name: Path | str, blocks: Iterator[tuple[int, str]]) -> Iterator[tuple[int, JsonValue, str]]:
    """Yield the elements of arrays, or the values that follow one another, each with its line; one at a time is in memory.

    The third item is the value's text; it is empty for the elements of an array. Raises InputError if a value is not JSON, is
    nested too deeply, has a key twice, or has more than WHOLE_MB.
    """
    decoder = json.JSONDecoder(object_pairs_hook=of_distinct_keys)
    text, line, is_array, num_tried = "", 1, None, 0
    for block in itertools.chain((block for _, block in blocks), [None]):  # None is the end
        text, position = text + (block or ""), 0
        if block is not None and len(text) < 2 * num_tried:
            continue  # a long value is not parsed at each block
        while True:
            begin = _BETWEEN.match(text, position).end()  # type: ignore[union-attr]
            line += text.count("\n", position, begin)
            position = begin
            if begin == len(text) and not (is_array and block is None):
                break
            if is_array is None:
                is_array = text[begin] == "["
                position += is_array
                continue
            if is_array and text[begin : begin + 1] == "]":
                is_array, position = None, begin + 1  # another array may follow, where files were joined
                continue
            value, end, fault = None, begin, ""
            try:
                value, end = decoder.raw_decode(text, begin)
                is_cut = end > len(text) - 3  # a number may go on, with "e+1" at most two characters later
                fault = TOO_DEEP if is_deep(value) else ""
            except RecursionError:
                is_cut, fault = False, TOO_DEEP
            except ValueError as error:
                fault = getattr(error, "msg", str(error))
                is_cut = getattr(error, "pos", 0) > len(text) - 16 or fault.startswith("Unterminated")
            if is_cut and block is not None:
                break
            if fault:
                raise InputError(f"{name}:{line}: not JSON ({fault}); restore the file")
            yield line, value, "" if is_array else text[begin:end]
            line += text.count("\n", begin, end)
            position = end
        text = text[position:]
        num_tried = len(text)
        if num_tried > WHOLE_MB * 1_000_000:
            raise InputError(f"{name}:{line}: a value {TOO_LARGE}; write it as lines (.jsonl)")


def with_inner_texts(row: Mapping[str, object]) -> dict[str, object]:
    """Return a record with the texts of its records, as columns of their own: {"translation": {"en": ...}} has translation.en, too."""
    inner = {
        f"{name}.{key}": text
        for name, record in row.items()
        if isinstance(record, dict)
        for key, text in record.items()
        if isinstance(text, str)
    }
    return {**row, **inner, **row}  # a column that is already there stays


def is_inner_text(name: str, row: Mapping[str, object]) -> bool:
    """Whether a column is one that `with_inner_texts` has added."""
    outer, dot, key = name.partition(".")
    record = row.get(outer)
    return dot != "" and isinstance(record, dict) and record.get(key) is row[name]
