"""Check the labels and ids that are read from files."""

import itertools
import math
import re
import shlex
import unicodedata
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from bertkit.base.errors import InputError, is_missing, named, user_name
from bertkit.base.text_files import control_character, is_blank
from bertkit.tasks.reading.cells import CountedRows, id_text
from bertkit.tasks.task_config import TaskConfig

Label = str | int | float
_TYPES = {str: "text", bool: "true or false", int: "a number", float: "a number"}
SEPARATORS = (",", ";", "|")  # between several labels
IMPOSSIBLE = "is_impossible"  # whether a question has no answer; then its answers are only plausible
MOST_IDS = 100_000  # of an input, that are remembered to find repeated ones
LARGEST = 1e15  # the largest label of a regression: its square fits into float32


class Ids:
    """The ids of examples. Each must be unique; a row without an id gets its number in the file, from 0.

    If ids of a file are repeated, all rows get their numbers, unless the user has named the column. In an input of `predict`, ids may be empty, and may be repeated, with a warning, unless `is_unique`: answers to questions are stored by id. A
    question without an id gets "line" and its line number, because its row number may be the id of another question.
    """

    def __init__(
        self, field: str | None, *, is_input: bool = False, is_unique: bool = True, is_named: bool = False
    ) -> None:
        self.field, self.is_input, self.is_unique, self.is_named = field, is_input, is_unique, is_named
        self.places: dict[str, str] = {}
        self.num_rows, self.numbers = 0, array("q")  # of the examples, for those that are repeated
        self.repeated = ""  # the first repeated id, and where it is
        self.of_input = set[str]()  # those of an input that may be repeated, at most `MOST_IDS`
        self.again = CountedRows()  # the rows of an input with the id of an earlier one

    def skip(self) -> None:
        """Count a row that is no example."""
        self.num_rows += 1

    def take(self, value: object, where: str, line: int) -> str:
        """Check and return the id of the next example."""
        self.numbers.append(self.num_rows)
        self.num_rows += 1
        name = id_text(value)
        if is_missing(value) or (self.is_input and value == ""):
            name = str(self.num_rows - 1)
            if self.field is None:
                return name
            if self.is_input and self.is_unique:
                return f"line {line}"
        if self.is_input and not self.is_unique:
            if name in self.of_input:
                self.again.add(f"{name!r:.80} at {where}")
            elif len(self.of_input) < MOST_IDS:
                self.of_input.add(name)
            return name
        if name in self.places:
            duplicate = f"{where}: {self.field} '{name:.80}' is a duplicate, first at {self.places[name]}"
            if self.is_named or self.is_input:
                raise InputError(f"{duplicate}; remove one of them, or set task.columns.id=null")
            self.repeated = self.repeated or duplicate
        self.places.setdefault(name, where)
        return name

    @property
    def warnings(self) -> list[str]:
        """A warning about repeated ids of an input."""
        have = "row has" if self.again.num_rows == 1 else "rows have"
        few = f"{self.again.num_rows:,} {have} the id of an earlier row, the first {self.again.first}"
        way_out = "give each row its own, or go by the order: predictions have that of the rows"
        return self.again.warning(f"{few}; {way_out}")


_WORDS = re.compile(r"[A-ZÄÖÜ]?[a-zäöü]+|[A-ZÄÖÜ]+|\d+")
_OF_AN_ID = {"id", "uid", "uuid", "guid", "nr", "nummer"}  # the last word of a column's name
NUM_LOOKED_AT = 1000  # values of a column, at most


class IdLike:
    """A column with the name of an id that is not taken as one; a remark is due if each row has its own value."""

    def __init__(self, names: Iterable[str]) -> None:
        self.name = next((name for name in names if "".join(_WORDS.findall(name)[-1:]).lower() in _OF_AN_ID), "")
        self.values, self.is_distinct = set[object](), True

    def look(self, value: object) -> None:
        """Look at the value of the next row."""
        if self.is_distinct and len(self.values) < NUM_LOOKED_AT:
            self.is_distinct = value not in (None, "") and value not in self.values
            self.values.add(value)

    @property
    def remark(self) -> str:
        """What to set so that the column has the ids; "" if it has none."""
        if not self.name or not self.is_distinct or len(self.values) < 2:
            return ""
        setting = shlex.quote(f"{user_name('task.columns.id')}={self.name}")
        return f"the ids are row numbers; {setting} takes those of column '{self.name}', and carry_input=true keeps all columns"


class _First(NamedTuple):
    """A label with its type, and the place where it is."""

    type: str
    place: str
    value: Label


class Labels:
    """Check the labels of a file, and convert them to names."""

    def __init__(self, task: TaskConfig, field: str | None, labels: tuple[str, ...], is_typed: bool) -> None:
        self.task, self.field, self.is_typed = task, field, is_typed
        # in the order of their numbers; none to take the labels from this file
        self.names = known = task.label_names or labels
        in_files = dict(zip(task.labels_in_files or (), known, strict=False))  # as many, by `TaskConfig`
        self.by_value = dict(zip(known, known, strict=True)) | in_files
        self.by_spelling = {spelled(value): name for value, name in self.by_value.items()} | self.by_value
        self.seen: dict[str, str] = {}  # the place where each label occurs first
        self.has_several = False  # whether a cell has several labels
        self.num_marked = 0  # the labels for which a file has 1.0 or 0.0 instead of names
        self.marks: dict[str, str] = {}  # of a regression: the first number with a decimal point, and with a comma
        self._first: _First | None = None  # what the other labels of a file are compared with

    def name_of(self, value: object, where: str) -> str:
        """Check a label and return its name."""
        label = self._checked(value, where, self.is_typed or not self.names)
        if isinstance(label, float) and not math.isfinite(label):
            raise self._wrong(where, f"label {label}")
        name = str(label) if str(label) in self.by_value else spelled(label)
        if self.names:
            if name not in self.by_spelling:
                shown = str(label) if isinstance(label, int) else repr(name)
                if unicodedata.normalize("NFC", name) in (unicodedata.normalize("NFC", one) for one in self.by_value):
                    shown = ascii(name)  # it looks like a known one
                unknown = f"unknown label {shown:.80}; expected {self.expected()}"
                raise InputError(f"{where}: {self.field}: {unknown}; correct it, or set task.labels=")
            name = self.by_spelling[name]
        self.seen.setdefault(name, where)
        return name

    def names_of(self, value: object, where: str) -> tuple[str, ...]:
        """Check several labels and return their names, without duplicates."""
        if self.num_marked or (
            isinstance(value, list) and value and all(isinstance(one, (bool, float)) for one in value)
        ):
            return self._marked(value, where)
        parts = parts_of(value, self.task.label_separator)
        if parts is None or (len({*map(str, parts)}) < len(parts) and all(map(_is_number, parts))):
            hint = "write joy,fear, or in JSON a list of names, or of 1.0 and 0.0 for each label"
            raise InputError(f"{where}: {self.field}: {value!r:.80} is no list of labels; {hint}")
        self.has_several = self.has_several or isinstance(value, list) or len(parts) > 1
        return tuple(dict.fromkeys(self.name_of(part, where) for part in parts))

    def check_separator(self) -> None:
        """Raise InputError if no cell has several labels, but would have with another separator: with it two cells share a label."""
        if not self.task.multi_label or self.has_several or self.names:
            return
        for mark in SEPARATORS:
            parts = {name: [part.strip() for part in name.split(mark)] for name in self.seen}
            if len({*itertools.chain(*parts.values())}) < sum(map(len, parts.values())):
                name = next(name for name, own in parts.items() if len(own) > 1)
                way = f'set "task.label_separator={mark!r}", or task.multi_label=false if it is one label'
                wrong = f"{name!r:.80} looks like several labels of other rows, but no cell has {self.task.label_separator!r}"
                raise InputError(f"{self.seen[name]}: {self.field}: {wrong}; {way}")

    def _marked(self, value: object, where: str) -> tuple[str, ...]:
        """Return the labels that have 1.0 in a list with 1.0 or 0.0 for each label."""
        marks = value if isinstance(value, list) else []
        names = self.names or tuple(map(str, range(self.num_marked or len(marks))))
        is_first = self.num_marked == 0 and not self.names
        self.num_marked = len(names)
        if len(marks) != len(names) or any(mark not in (0.0, 1.0) for mark in marks) or (is_first and self.seen):
            raise InputError(
                f"{where}: {self.field}: {value!r:.80}; expected 1.0 or 0.0 for each of {len(names)} labels"
            )
        return tuple(self.name_of(name, where) for name, mark in zip(names, marks, strict=True) if mark)

    def all(self) -> tuple[str, ...]:
        """Return the names in the order of their numbers: as listed; or else sorted, numbers by value, texts by alphabet."""
        marked = map(str, range(self.num_marked))
        return self.names or tuple(sorted({*self.seen, *marked}, key=lambda name: (as_number(name), name)))

    def expected(self) -> str:
        """Describe the allowed labels, for messages."""
        return named(self.by_value, " or ") if self.names else "a label"

    def _wrong(self, where: str, wrong: str) -> InputError:
        return InputError(f"{where}: {self.field}: {wrong}; expected {self.expected()}")

    def _checked(self, value: object, where: str, needs_one_type: bool) -> Label:
        """Return the label without blanks around it; raise InputError if it is empty, or not of the first label's type."""
        value = value.strip() if isinstance(value, str) else value
        if value in (None, ""):
            raise self._wrong(where, "empty label")
        if not isinstance(value, (str, int, float)):
            raise self._wrong(where, f"label is {type(value).__name__}")
        if code := control_character(str(value)):
            raise InputError(f"{where}: {self.field}: label {value!r:.80} has the control character {code}; remove it")
        is_number = not self.is_typed and as_number(value) < math.inf
        written = "a number" if is_number else _TYPES[type(value)]
        first = self._first = self._first or _First(written, where, value)
        if needs_one_type and first.type != written:
            raise InputError(
                f"{where}: {self.field}: mixed label types: {value!r:.80} is {written}, but {first.value!r:.80} at {first.place} "
                f"is {first.type}; use one type for all{'' if self.is_typed else ', or set task.labels='}"
            )
        return value


class NumericLabels(Labels):
    """Check the labels of a regression, and convert them to numbers."""

    def number_of(self, value: object, where: str) -> float:
        """Check a label and return the number."""
        label = self._checked(value, where, self.is_typed)
        number = math.nan if isinstance(label, bool) else as_number(label)
        if isinstance(label, str) and (mark := "," if with_decimal_comma(label) < math.inf else "." * ("." in label)):
            number = with_decimal_comma(label) if mark == "," else number
            self.marks.setdefault(mark, f"{label!r:.80} at {where}")
        check_marks(self.marks)
        low, high = self.task.label_range or (-LARGEST, LARGEST)
        if not (math.isfinite(number) and low <= number <= high):
            raise self._wrong(where, f"label {label!r:.80}")
        return number

    def all(self) -> tuple[str, ...]:
        """Return no names: a regression has none."""
        return ()

    def expected(self) -> str:
        """Describe the allowed numbers, for messages."""
        return (
            "a number from {:g} to {:g}".format(*self.task.label_range)
            if self.task.label_range
            else "a number, as in 1234.5"
        )


def check_marks(marks: Mapping[str, str]) -> None:
    """Raise InputError if some numbers have decimal points and others decimal commas; see `Labels.marks`."""
    if len(marks) > 1:
        differ = f"{marks['.']} has a decimal point, {marks[',']} a decimal comma"
        raise InputError(f"labels: {differ}; write all numbers as in 1234.5")


def is_impossible(row: Mapping[str, object], where: str) -> bool:
    """Return whether a question has no answer; tables write it as text, and pandas as a number beside gaps."""
    known, value = {"true": True, "1": True, "false": False, "0": False, "": False}, row.get(IMPOSSIBLE)
    text = "" if value is None else spelled(value) if isinstance(value, (str, int, float)) else repr(value)
    if text.lower() not in known:
        raise InputError(f"{where}: {IMPOSSIBLE} {value!r:.80}; expected true or false")
    return known[text.lower()]


_LIST = re.compile(r"""\[\s*(?:("[^"\\]*"|'[^'\\]*')\s*(?:,\s*("[^"\\]*"|'[^'\\]*')\s*)*)?\]""")
# another list, or a set, tuple or mapping of Python's, or an array of a database
_COLLECTION = re.compile(r"""\[.*\]|[({]\s*['"].*[)}]|\([^()]*,[^()]*\)|\{[^{}]*\}""", re.DOTALL)
_ITEM = re.compile(r"""(["'])(.*?)\1""")
_NUMBERS = re.compile(r"\[-?[0-9]+(?:,\s*-?[0-9]+)*\]")
# a word may look like a list of tags: [Smith,2001]
_OTHER_LIST = re.compile(
    r"""\[(?:['"].*|\s*-?[0-9]+(?:\s+-?[0-9]+)+\s*|[^\s,]+(?:,\s+[^\s,]+)+)\]|[({]\s*(['"])[^'"]*\1,.*['"]\s*,?\s*[)}]""",
    re.DOTALL,
)
_OTHER_TAGS = re.compile(r"""\[.*\]|(?:.*[\w'")\]}][,;](?:\s.*)?)""", re.DOTALL)
_DECIMAL_COMMA = re.compile(r"[+-]?(?:0,[0-9]+|[0-9]+,(?:[0-9]{1,2}|[0-9]{4,}))")
_WHOLE = re.compile(r"(-?[0-9]+)\.0+")
_BETWEEN_WORDS = re.compile("[ \t\r\n]+")  # a no-break space is part of a word, as in CoNLL


def _is_number(part: object) -> bool:
    return not isinstance(part, str) or as_number(part) < math.inf


def parts_of(value: object, separator: str) -> Sequence[object] | None:
    """Return the labels in a list, or in a text with separators between them, or as Python and JSON write lists; None for other lists."""
    match value:
        case list():
            return value
        case str() if (items := items_in(value)) is not None:
            return items
        case str() if _COLLECTION.fullmatch(value.strip()):
            return None
        case str():
            return value.split(separator) if value.strip() else []
    return [value]


def items_in(text: str) -> list[str] | None:
    """Return the items of a list of texts in a cell, as Python and JSON write it; None for another text."""
    plain = text.strip()
    return [item for _, item in _ITEM.findall(plain)] if _LIST.fullmatch(plain) else None


def words_in(text: str) -> Sequence[str]:
    """Return the words of a cell: between blanks, or in a list as Python and JSON write it.

    Raises ValueError for a list without commas, as numpy writes it, without quotes, with escaped characters, or in other brackets.
    """
    return _separated(text, _OTHER_LIST)


def tags_in(text: str) -> Sequence[str]:
    """Return the tags of a cell, as `words_in` does for words; they may be numbers, as in [1, 0].

    Raises ValueError also for every other list: tags have no brackets around them, and no comma after their letters.
    """
    plain = text.strip()
    return plain[1:-1].replace(",", " ").split() if _NUMBERS.fullmatch(plain) else _separated(text, _OTHER_TAGS)


def _separated(text: str, refused: re.Pattern[str]) -> Sequence[str]:
    if (items := items_in(text)) is not None:
        return items
    if refused.fullmatch(text.strip()):
        raise ValueError(
            f"{text!r:.80}: expected a list with commas and quotes, as in \"['a', 'b']\"; write JSON lines"
        )
    return [] if is_blank(text) else [*filter(None, _BETWEEN_WORDS.split(text))]


def spelled(label: Label) -> str:
    """Return a label as its name is spelled, whatever it was read from: true for True, 3 for 3.0."""
    text = str(label).strip()
    whole = _WHOLE.fullmatch(text)
    return whole[1] if whole else text.lower() if text.lower() in ("true", "false") else text


def with_decimal_comma(text: str) -> float:
    """Convert a number such as 180,02; return infinity if it is none, or may have a thousands separator, as 1,234."""
    return float(text.replace(",", ".")) if _DECIMAL_COMMA.fullmatch(text) else math.inf


def as_number(value: Label) -> float:
    """Convert a value to a number; return infinity if it is not a number, such as 1_000, which Python alone takes for one."""
    try:
        number = math.nan if "_" in str(value) else float(value)
    except (ValueError, OverflowError):  # an integer of JSON may be too large
        return math.inf
    return math.inf if math.isnan(number) else number
