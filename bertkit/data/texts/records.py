"""The records, lines and paragraphs of files -> documents, which are lists of sentences."""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping

from bertkit.base.errors import InputError, named, not_text
from bertkit.base.json_stream import with_inner_texts
from bertkit.base.text_files import is_blank, without_surrogates
from bertkit.data.data_config import CorpusConfig
from bertkit.data.texts.sources import split_sentences

Document = list[str]
LONGEST_COLUMN = 200  # in characters; the longer columns of a record are not kept
LARGEST_EXACT = 2**53  # of the whole numbers that a float holds
NO_COLUMNS: Mapping[str, str] = {}


class PlacedDocument(list[str]):
    """A document with the number of its first line or record in its file, from 1; its title, or ""; and its short columns."""

    def __init__(
        self, lines: Iterable[str] = (), number: int = 0, title: str = "", columns: Mapping[str, str] = NO_COLUMNS
    ) -> None:
        super().__init__(lines)
        self.number, self.title, self.columns = number, title, columns


def documents_of_records(
    config: CorpusConfig, records: Iterable[tuple[int, object]], where: Callable[[int], str]
) -> Iterator[Document]:
    """Yield the texts of numbered records as documents; raises InputError for a record without a text, with its place."""
    field = config.field
    for number, record in records:
        match record:
            case dict() if field in (fields := with_inner_texts(record)):
                text, title = fields[field], record.get("title")
            case dict():
                raise InputError(_no_field(where(number), field, named(fields)))
            case list():
                raise InputError(f"{where(number)}: a list; set corpus.format=json")
            case _:
                raise InputError(_no_field(where(number), field, type(record).__name__))
        if not isinstance(text, str):
            is_quoted = config.source != "texts"
            wrong = not_text(field, text) if is_quoted else f"'{field}' is {type(text).__name__}; expected text"
            raise InputError(f"{where(number)}: {wrong}")
        title = without_surrogates(title) if isinstance(title, str) and field != "title" else ""
        columns = {
            name: short for name, value in record.items() if name not in (field, "title") and (short := _short(value))
        }
        document = PlacedDocument(without_surrogates(text).split("\n"), number, title, columns)
        if filled := as_sentences(document, config.sentences != "lines"):
            yield filled


def _short(value: object) -> str:
    """Return a short text unchanged, and a number or a truth value as in JSON, 3 for 3.0; "" for other values."""
    match value:
        case str() if len(value) <= LONGEST_COLUMN:
            return value
        case float() if value.is_integer() and abs(value) < LARGEST_EXACT:  # so pandas writes whole numbers beside gaps
            return str(int(value))
        case bool() | int() | float():
            return json.dumps(value)
    return ""


def _no_field(where: str, field: str, fields: str) -> str:
    return f"{where}: no field '{field}' (it has: {fields}); set corpus.field="


def documents_of_lines(blocks: Iterable[tuple[int, list[str]]]) -> Iterator[PlacedDocument]:
    """Yield the documents between blank lines."""
    document = PlacedDocument()
    for number, lines in blocks:
        for blank, run in itertools.groupby(map(str.strip, lines), is_blank):
            own = list(run)
            if blank and document:
                yield document
                document = PlacedDocument()
            elif not blank:
                document.number = document.number or number
                document += own
            number += len(own)
    if document:
        yield document


def as_sentences(document: PlacedDocument, split: bool) -> PlacedDocument:
    """Return a document without blank lines, and with its lines split into sentences if that is asked for."""
    sentences = itertools.chain.from_iterable(map(split_sentences, document)) if split else document
    filled = [sentence.strip() for sentence in sentences if not is_blank(sentence)]
    return PlacedDocument(filled, document.number, document.title, document.columns)
