"""Reading text: every format, and every error with its place."""

import bz2
import gzip
import io
import json
import lzma
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from bertkit.base.errors import InputError
from bertkit.data.data_config import CorpusConfig
from bertkit.data.texts.documents import Corpus, open_corpus
from bertkit.data.texts.sources import split_sentences

TEXT = "One two.\nThree.\n\n\nFour five.\n  Six.  \n \t\nSeven."
DOCUMENTS = [["One two.", "Three."], ["Four five.", "Six."], ["Seven."]]
RECORDS = [{"text": "One two. Three.", "n": 1}, {"text": "Four five.\nSix.", "n": 2}, {"text": "Seven.", "n": 3}]
WIKI = (
    '<doc id="1" url="u" title="Numbers">\nNumbers\n\nOne two. Three.\n</doc>\n'
    '<doc id="2" url="u" title="More">\nMore\n\nFour five.\n\nSix.\n</doc>\n\n'
    '<doc id="3" url="u" title="Last">\nLast\n\nSeven.\n</doc>\n'
)


def config(path: Any, **changes: Any) -> CorpusConfig:
    values = {
        "format": "auto", "field": "text", "sentences": "auto", "encoding": "utf-8", "name": None, "split": "train",
    }  # fmt: skip
    value = str(path) if isinstance(path, Path) else path
    return CorpusConfig(**{"source": "files", "path": value, **values, **changes})


def read(path: Any, **changes: Any) -> list[list[str]]:
    return list(open_corpus(config(path, **changes)))


def jsonl(records: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def write_parquet(path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(RECORDS), path)


def zstandard(content: bytes) -> bytes:
    import pyarrow

    packed = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(packed, "zstd") as stream:
        stream.write(content)
    return packed.getvalue().to_pybytes()  # type: ignore[no-any-return]


def write_arrow(path: Path, is_stream: bool) -> None:
    import pyarrow

    table = pyarrow.Table.from_pylist(RECORDS)
    opened = pyarrow.ipc.new_stream if is_stream else pyarrow.ipc.new_file
    with opened(str(path), table.schema) as file:
        file.write_table(table, 2)


WRITERS = {
    "a.txt": lambda path: path.write_text(TEXT, encoding="utf-8"),
    "a.text": lambda path: path.write_text(TEXT, encoding="utf-8"),
    "a.txt.gz": lambda path: path.write_bytes(gzip.compress(TEXT.encode())),
    "crlf.txt": lambda path: path.write_bytes(TEXT.replace("\n", "\r\n").encode()),
    "bom.txt": lambda path: path.write_bytes(b"\xef\xbb\xbf" + TEXT.encode()),
    "a.jsonl": lambda path: path.write_text(jsonl(RECORDS)),
    "a.jsonl.gz": lambda path: path.write_bytes(gzip.compress(("\ufeff" + jsonl(RECORDS) + "\n\n").encode())),
    "a.json": lambda path: path.write_text(json.dumps(RECORDS)),
    "indented.json": lambda path: path.write_text(json.dumps(RECORDS, indent=1)),
    "lines.json": lambda path: path.write_text(jsonl(RECORDS).replace("\n", "\n\n")),
    "a.parquet": write_parquet,
    "wiki_00": lambda path: path.write_text(WIKI),
    "wiki_01.gz": lambda path: path.write_bytes(gzip.compress(WIKI.encode())),
    "json_00": lambda path: path.write_text(jsonl(RECORDS)),
    "a.txt.bz2": lambda path: path.write_bytes(bz2.compress(TEXT.encode())),
    "a.text.xz": lambda path: path.write_bytes(lzma.compress(TEXT.encode())),
    "a.jsonl.zst": lambda path: path.write_bytes(zstandard(jsonl(RECORDS).encode())),
    "packed.txt": lambda path: path.write_bytes(gzip.compress(TEXT.encode())),
    "A.TXT": lambda path: path.write_text(TEXT, encoding="utf-8"),
    "a.ndjson": lambda path: path.write_text(jsonl(RECORDS)),
    "a.arrow": lambda path: write_arrow(path, is_stream=True),
    "file.arrow": lambda path: write_arrow(path, is_stream=False),
    "arrow_00": lambda path: write_arrow(path, is_stream=False),
    "no_ending": lambda path: path.write_text(TEXT),
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_the_same_documents_again_and_again(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / name)
    corpus = open_corpus(config(tmp_path / name))
    assert list(corpus) == list(corpus) == DOCUMENTS
    assert corpus.total_bytes == corpus.bytes_read == (tmp_path / name).stat().st_size
    assert corpus.has_document_breaks == (".t" in name.lower() or name == "no_ending")


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\r"])
def test_only_a_line_feed_ends_a_line_in_every_format(tmp_path: Path, mark: str) -> None:
    """Of a record such a mark inside a sentence made two."""
    text = f"one {mark} two\r\nthree"
    (tmp_path / "a.txt").write_bytes(text.encode())
    (tmp_path / "a.jsonl").write_text(jsonl([{"text": text}]))
    for name in ("a.txt", "a.jsonl"):
        assert read(tmp_path / name, sentences="lines") == [[f"one {mark} two", "three"]]


def test_a_folder_is_read_in_order_and_other_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "2.txt").write_text("Two.")
    (tmp_path / "1.jsonl").write_text(jsonl([{"text": "One."}]))
    (tmp_path / "c_wiki").write_text(WIKI)
    for name in ("README.md", "image.png", ".hidden.txt"):
        (tmp_path / name).write_text("x")
    corpus = open_corpus(config(tmp_path))
    assert list(corpus) == [["One."], ["Two."], *DOCUMENTS]
    assert sorted(path.name for path in corpus.ignored) == ["README.md", "image.png"]
    assert corpus.describe() == "3 files (jsonl, text, wikiextractor), 0.0 MB; ignored 2 other (README.md, image.png)"


def test_globs_lists_and_the_same_file_twice(tmp_path: Path) -> None:
    for name in ("a/1.txt", "a/b/2.txt", "3.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    assert read(f"{tmp_path}/a/*.txt") == [["a/1.txt"]]
    assert read(f"{tmp_path}/**/*.txt") == [["3.txt"], ["a/1.txt"], ["a/b/2.txt"]]
    assert read((f"{tmp_path}/3.txt", f"{tmp_path}/a")) == [["3.txt"], ["a/1.txt"], ["a/b/2.txt"]]
    assert read((f"{tmp_path}/3.txt", f"{tmp_path}/*.txt")) == [["3.txt"]]
    assert read(f"{tmp_path}/*") == [["3.txt"], ["a/1.txt"], ["a/b/2.txt"]]  # a pattern may match a folder
    (tmp_path / "a[1].txt").write_text("a name")
    assert read(tmp_path / "a[1].txt") == [["a name"]]


def test_other_encodings(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("Grüße aus Köln.\n\nÀ bientôt.".encode("latin-1"))
    assert read(tmp_path / "a.txt", encoding="latin-1") == [["Grüße aus Köln."], ["À bientôt."]]
    with pytest.raises(InputError, match=r"a\.txt:1: not UTF-8 \(byte 0xfc at column 3\)"):
        read(tmp_path / "a.txt")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "UTF_16BE"])
def test_a_corpus_in_utf16(encoding: str, tmp_path: Path) -> None:
    """The character U+0A0A has the bytes of two line feeds."""
    documents = [["Grüße aus Köln.", "\u0a0a ist ein Buchstabe."], ["À bientôt."]] * 3
    text = "\n\n".join("\n".join(lines) for lines in documents).encode(encoding)
    (tmp_path / "a.txt").write_bytes(text)
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(text))
    (tmp_path / "c.jsonl").write_bytes(jsonl([{"text": "\n".join(lines)} for lines in documents]).encode(encoding))
    for name in ("a.txt", "b.txt.gz", "c.jsonl"):
        for set_encoding in (encoding, *(["utf-8"] if encoding == "utf-16" else [])):  # with a mark it is detected
            corpus = open_corpus(config(tmp_path / name, encoding=set_encoding))
            assert [document for portion in corpus.portions(20) for document in corpus.documents(portion)] == documents


def test_given_format_field_and_sentences(tmp_path: Path) -> None:
    (tmp_path / "a.data").write_text(jsonl([{"body": "One two. Three.\nFour. Five."}]))
    options = {"format": "jsonl", "field": "body"}
    assert read(tmp_path / "a.data", **options) == [["One two.", "Three.", "Four.", "Five."]]
    assert read(tmp_path / "a.data", **options, sentences="lines") == [["One two. Three.", "Four. Five."]]
    (tmp_path / "a.txt").write_text("One two. Three.")
    assert read(tmp_path / "a.txt") == [["One two. Three."]]
    assert read(tmp_path / "a.txt", sentences="split") == [["One two.", "Three."]]


def test_lone_surrogate_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "cut \\ud83d here, whole \\ud83d\\ude00."}\n')
    assert read(tmp_path / "a.jsonl") == [["cut \ufffd here, whole \U0001f600."]]


def test_wiki_text_that_repeats_no_title_is_kept(tmp_path: Path) -> None:
    wiki = '<doc id="1" url="u" title="T">\nText first.\n</doc>\n<doc id="2" title="E">\nE\n</doc>\n'
    (tmp_path / "wiki").write_text(wiki)
    assert read(tmp_path / "wiki") == [["Text first."]]


def bad_gzip(path: Path) -> None:
    content = gzip.compress("".join(f"line {n} {n * n}\n" for n in range(9_999)).encode())
    path.write_bytes(content[: len(content) // 2])


ERRORS = {
    "bad UTF-8": ("a.txt", lambda p: p.write_bytes(b"fine\n\nab\xffc\n"),
                  "a.txt:3: not UTF-8 (byte 0xff at column 3); convert the file or set corpus.encoding"),
    "zero byte": ("a.txt", lambda p: p.write_bytes(b"fine\na\0b\n"), "a.txt:2: not text (a zero byte at column 2)"),
    "zero byte in JSON lines": ("a.jsonl", lambda p: p.write_bytes(b"\0"), "a.jsonl:1: not text (a zero byte at column 1)"),
    "truncated gzip": ("a.txt.gz", bad_gzip, ": damaged gzip file ("),
    "not gzip": ("a.txt.gz", lambda p: p.write_text("plain\n"), "a.txt.gz: damaged gzip file ("),
    "corrupt gzip": ("a.txt.gz", lambda p: p.write_bytes(gzip.compress(b"abc" * 99)[:15] + b"\xff" * 30), "damaged gzip file"),
    "bad JSON": ("a.jsonl", lambda p: p.write_text('{"text": "a"}\n\n{"text": \n'), "a.jsonl:3: not JSON ("),
    "deep JSON": ("a.jsonl", lambda p: p.write_text("[" * 200_000 + "\n"), "a.jsonl:1: not JSON ("),
    "long number": ("a.jsonl", lambda p: p.write_text('{"n": ' + "9" * 5_000 + "}\n"), "a.jsonl:1: not JSON ("),
    "missing field": ("a.jsonl", lambda p: p.write_text('{"title": "a", "body": "b"}\n'),
                      "a.jsonl:1: no field 'text' (it has: 'title', 'body'); set corpus.field="),
    "no object": ("a.jsonl", lambda p: p.write_text("1\n"), "a.jsonl:1: no field 'text' (it has: int)"),
    "an array in JSON lines": ("a.jsonl", lambda p: p.write_text('[{"text": "a"}]\n'), "a.jsonl:1: a list; set corpus.format=json"),
    "no text": ("a.jsonl", lambda p: p.write_text('{"text": 3}\n'), "a.jsonl:1: 'text' is 3; expected text"),
    "null": ("a.jsonl", lambda p: p.write_text('{"text": null}\n'), "a.jsonl:1: 'text' is empty; fill it or drop the row"),
    "missing field in JSON": ("a.json", lambda p: p.write_text('[{"body": "b"}]'), "a.json: record 1: no field 'text' (it has: 'body')"),
    "broken JSON": ("a.json", lambda p: p.write_text("[{"), "a.json:1: not JSON ("),
    "deep JSON in a file": ("a.json", lambda p: p.write_text("[" * 100_000), "a.json:1: not JSON ("),
    "JSON and more": ("a.json", lambda p: p.write_text('{"text": "a"}\nx'), "a.json:2: not JSON ("),
    "broken parquet": ("a.parquet", lambda p: p.write_text("PAR1"), "a.parquet: not readable as parquet ("),
    "text outside of <doc>": ("wiki", lambda p: p.write_text(WIKI + "stray\n"), "wiki:19: text outside <doc> ... </doc>"),
    "empty file": ("a.txt", lambda p: p.write_text(""), "a.txt: no text in this file"),
    "blank file": ("a.txt", lambda p: p.write_text(" \n\n\t\n"), "a.txt: no text in this file"),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_errors_name_the_file_and_the_line(tmp_path: Path, name: str) -> None:
    file_name, write, message = ERRORS[name]
    write(tmp_path / file_name)
    with pytest.raises(InputError) as caught:
        read(tmp_path / file_name)
    assert message in str(caught.value)
    assert str(tmp_path / file_name) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "rows"), [
    ("a.csv", 'n,body\n1,"kan, lon"\n2,"a ""b"""\n'),
    ("a.TSV", 'n\tbody\n1\tkan, lon\n2\t"a ""b"""\n'),
    ("a.csv.gz", 'n,body\n1,"kan, lon"\n2,"a ""b"""\n'),
])  # fmt: skip
def test_a_table_becomes_json_lines_by_the_command_in_the_message(
    tmp_path: Path, name: str, rows: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(gzip.compress(rows.encode()) if name.endswith(".gz") else rows.encode())
    with pytest.raises(InputError) as caught:
        open_corpus(config(name))
    script = re.findall("of it: (.*), and set corpus.field=", str(caught.value))[0]
    subprocess.run(script.replace("python", sys.executable), shell=True, check=True)
    assert read("a.jsonl", field="body") == [["kan, lon"], ['a "b"']]


@pytest.mark.parametrize(("path", "message"), [
    ("none.txt", "no such file, folder or match"),
    ("*.none", "no such file, folder or match"),
    ("folder", "no text in this folder"),
])  # fmt: skip
def test_corpus_path_without_text_is_refused(tmp_path: Path, path: str, message: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "image.png").write_bytes(b"\x89PNG")
    with pytest.raises(InputError) as caught:
        open_corpus(config(tmp_path / path))
    assert f"corpus.path={tmp_path / path}: {message}" in str(caught.value)


@pytest.mark.parametrize(("changes", "message"), [
    ({"encoding": "utf-9"}, "corpus.encoding=utf-9: expected UTF-16, or an encoding with one byte for a line feed"),
    ({"encoding": "utf-32-be"}, "corpus.encoding=utf-32-be: expected UTF-16"),
])  # fmt: skip
def test_refused_settings(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        config(**{"path": "x", **changes})
    assert message in str(caught.value)


@pytest.mark.parametrize(("paragraph", "sentences"), [
    ("", []),
    ("No end", ["No end"]),
    ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
    ("Mr. Smith met Dr. J. Brown. He left.", ["Mr. Smith met Dr. J. Brown.", "He left."]),
    ("It is 3.14 or so. 42 is more.", ["It is 3.14 or so.", "42 is more."]),
    ("e.g. This is one. i.e. Not two.", ["e.g. This is one. i.e. Not two."]),
    ("Vol. 3 has No. 7. End.", ["Vol. 3 has No. 7.", "End."]),
    ('He said "Go." Then he went.', ['He said "Go."', "Then he went."]),
    ("(It was.) “Why?” ‘Who knows.’", ["(It was.)", "“Why?”", "‘Who knows.’"]),
    ("Wait... What? really? Yes.", ["Wait...", "What? really?", "Yes."]),
    ("a.b. c", ["a.b. c"]),
    ("Été. Île. Ünder.", ["Été.", "Île.", "Ünder."]),
    ("Да. Нет. Ναι. Όχι", ["Да.", "Нет.", "Ναι. Όχι"]),
    ("他来了。她走了！好吗？是", ["他来了。", "她走了！", "好吗？", "是"]),
    ("  One.   Two.  ", ["One.", "Two."]),
    ("One.\tTwo.", ["One.", "Two."]),
])  # fmt: skip
def test_split_sentences(paragraph: str, sentences: list[str]) -> None:
    assert split_sentences(paragraph) == sentences


def test_only_a_blank_line_ends_a_document_where_files_are_joined(tmp_path: Path) -> None:
    """As in the original; a record of another format stays a document of its own."""
    for name, text in {
        "1.txt": "a\nb\n", "2.txt": "c\n\nd", "3.txt": "\ne\n", "4.jsonl": '{"text": "J."}\n', "5.txt": "f\n", "6.txt": "g"
    }.items():  # fmt: skip
        (tmp_path / name).write_text(text)
    joined = [["a", "b", "c"], ["d"], ["e"], ["J."], ["f", "g"]]
    assert list(open_corpus(config(tmp_path), join_files=True)) == joined
    assert list(open_corpus(config(tmp_path))) == [["a", "b"], ["c"], ["d"], ["e"], ["J."], ["f"], ["g"]]


@pytest.mark.parametrize("line", ["\ufeff", "\u200b\u200d", "\u2060\u00a0"])
@pytest.mark.parametrize("part_bytes", [1, 10**6])
def test_a_line_of_nothing_that_is_seen_ends_a_document(tmp_path: Path, line: str, part_bytes: int) -> None:
    (tmp_path / "a.txt").write_text(f"{line}\nOne.\n{line}\nTwo.\n\n{line}\nThree\ufeff.\n", encoding="utf-8")
    assert read_in_portions(open_corpus(config(tmp_path / "a.txt")), part_bytes) == [
        ["One."],
        ["Two."],
        ["Three\ufeff."],
    ]


def test_results_below_a_folder_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    for name in ("a.txt", "dump.txt", "out/b.txt"):
        (tmp_path / name).write_text("text\n")
    corpus = open_corpus(config(tmp_path), leave_out=[tmp_path / "out", tmp_path / "dump.txt"])
    assert [path.name for path, _ in corpus.files] == ["a.txt"]


# ---- portions


def read_in_portions(corpus: Corpus, num_bytes: int) -> list[list[str]]:
    result = {
        n: list(corpus.documents(portion)) for n, portion in reversed(list(enumerate(corpus.portions(num_bytes))))
    }
    return [document for n in sorted(result) for document in result[n]]


@pytest.mark.parametrize("num_bytes", [1, 2, 13, 31, 10**6])
@pytest.mark.parametrize("name", WRITERS)
def test_portions_together_are_the_corpus(tmp_path: Path, name: str, num_bytes: int) -> None:
    WRITERS[name](tmp_path / name)
    corpus = open_corpus(config(tmp_path / name))
    portions = corpus.portions(num_bytes)
    assert read_in_portions(corpus, num_bytes) == DOCUMENTS
    is_packed = name.endswith((".gz", ".bz2", ".xz", ".zst")) or name == "packed.txt"
    whole = is_packed or "arrow" in name or name.endswith((".json", ".parquet")) or num_bytes == 10**6
    assert (len(portions) == 1) == whole
    assert sum(stretch.num_bytes for portion in portions for stretch in portion) == corpus.total_bytes


@pytest.mark.parametrize("num_bytes", [1, 8, 25, 10**6])
def test_portions_of_many_files_cut_no_document(tmp_path: Path, num_bytes: int) -> None:
    """Small files share a portion; files read as one are not cut, and neither is a document."""
    for number in range(7):
        (tmp_path / f"{number}.txt").write_text(f"line {number}\n" * number + "\n\nend\n" * (number % 2))
    (tmp_path / "3.jsonl").write_text(jsonl(RECORDS))
    for join in (False, True):
        corpus = open_corpus(config(tmp_path), join_files=join)
        assert read_in_portions(corpus, num_bytes) == list(corpus)
        if num_bytes == 10**6:
            assert len(corpus.portions(num_bytes)) == 1
    assert (
        len(open_corpus(config(tmp_path)).portions(25))
        > len(open_corpus(config(tmp_path), join_files=True).portions(25))
        >= 3
    )


@pytest.mark.parametrize("block_bytes", [1, 3, 64])
def test_documents_do_not_depend_on_block_size(
    tmp_path: Path, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertkit.base.text_files.TEXT_BYTES", block_bytes)
    (tmp_path / "a.txt").write_bytes("\ufeffÉtĕ 中文\u2028𠀀 \r\n\u3000\nb\n\nc".encode())
    for num_bytes in (1, 10, 1000):
        assert read_in_portions(open_corpus(config(tmp_path / "a.txt")), num_bytes) == [
            ["Étĕ 中文\u2028𠀀"],
            ["b"],
            ["c"],
        ]


@pytest.mark.parametrize("name", [name for name in ERRORS if "file" not in name])
def test_errors_in_portions_name_the_same_line(tmp_path: Path, name: str) -> None:
    file_name, write, _ = ERRORS[name]
    write(tmp_path / file_name)
    corpus = open_corpus(config(tmp_path / file_name))
    messages = []
    for num_bytes in (10**6, 1, 5):
        with pytest.raises(InputError) as caught:
            [list(corpus.documents(portion)) for portion in corpus.portions(num_bytes)]
        messages.append(str(caught.value))
    assert messages[0] == messages[1] == messages[2]


def zipped() -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("a.txt", TEXT)
    return packed.getvalue()


def tarred() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        entry = tarfile.TarInfo("a.txt")
        entry.size = len(TEXT)
        archive.addfile(entry, io.BytesIO(TEXT.encode()))
    return packed.getvalue()


REFUSED = [
    ("a.csv.bz2", bz2.compress(b"text,n\na,1\n"), ": a table; make JSON lines of it: bzip2 -dc "),
    ("a.tsv.xz", lzma.compress(b"text\tn\n"), ": a table; make JSON lines of it: xz -dc "),
    ("a.csv.zst", zstandard(b"text,n\na,1\n"), ": a table; make JSON lines of it: zstd -dc "),
    ("a.zip", zipped(), ": a zip archive; unpack it"),
    ("a.tar.gz", tarred(), ": a tar archive; unpack it"),
    ("a.txt.bz2", bz2.compress(TEXT.encode())[:40], ": damaged bzip2 file (Compressed file ended"),
    ("a.txt.xz", lzma.compress(TEXT.encode())[:40], ":2: damaged xz file (Compressed file ended"),
    ("a.txt.zst", zstandard(TEXT.encode())[:40], ": damaged zstd file (Truncated"),
    ("a.parquet.gz", b"", ": not readable as parquet ("),
    ("records.log", jsonl([{"body": "One."}]).encode(), ": it looks like JSON; set corpus.format=jsonl or json"),
    ("records.txt", b'\xef\xbb\xbf{"text": "One."}\n', ": it looks like JSON; set corpus.format=jsonl or json"),
    ("page.html", b"<!DOCTYPE html><p>One.", ": it has markup; extract its text"),
    ("page.txt.gz", gzip.compress(b"<html><p>One."), ": it has markup; extract its text"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "message"), REFUSED, ids=[name for name, _, _ in REFUSED])
def test_tables_archives_and_markup_are_never_read_as_text(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as caught:
        read(tmp_path / name)
    assert str(caught.value).startswith(f"{tmp_path / name}{message}")
    assert "\n" not in str(caught.value)


def test_a_dataset_of_save_to_disk_is_read_by_its_library(tmp_path: Path) -> None:
    import datasets

    rows, other = datasets.Dataset.from_list(RECORDS), datasets.Dataset.from_list([{"text": "Other."}])
    rows.save_to_disk(tmp_path / "one", num_shards=2)
    datasets.DatasetDict(train=rows, test=other).save_to_disk(tmp_path / "both" / "set")
    assert (
        read(tmp_path / "one") == read(tmp_path / "both") == DOCUMENTS
    )  # each row once, and no line of its JSON files
    assert read(tmp_path / "both", split="test") == [["Other."]]
    corpus = open_corpus(config(tmp_path / "both"))
    assert corpus.describe() == "1 file (arrow), 0.0 MB; ignored 1 other (test)"
    for path, changes, message in (
        ("both", {"split": "dev"}, "no split 'dev' (it has: train, test); set corpus.split="),
        ("one", {"field": "body"}, "record 1: no field 'body' (it has: 'text', 'n'); set corpus.field="),
    ):
        with pytest.raises(InputError) as caught:
            read(tmp_path / path, **changes)
        assert message in str(caught.value)
    (tmp_path / "hub").mkdir()
    write_parquet(tmp_path / "hub" / "train-00000-of-00001.parquet")
    (tmp_path / "hub" / "dataset_infos.json").write_text(
        '{"default": {"features": {}}}'
    )  # as in a repository of the hub
    assert read(tmp_path / "hub") == DOCUMENTS
    (tmp_path / "one" / "state.json").write_text("{}")
    with pytest.raises(InputError, match=r"one: not readable as a dataset of datasets\.save_to_disk"):
        read(tmp_path / "one")


def test_a_text_inside_a_field(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(jsonl([{"translation": {"en": "One two. Three.", "de": "Eins"}}]))
    assert read(tmp_path / "a.jsonl", field="translation.en") == [["One two.", "Three."]]


def test_a_document_on_each_line_is_found_by_its_shape(tmp_path: Path) -> None:
    lines = [f"Line {n} begins. It goes on. And it ends." for n in range(12)]
    documents = [[f"Line {n} begins.", "It goes on.", "And it ends."] for n in range(12)]
    (tmp_path / "a.txt").write_text("\n".join(lines) + "\n")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    for name in ("a.txt", "b.txt.gz"):
        corpus = open_corpus(config(tmp_path / name))
        assert [document for portion in corpus.portions(99) for document in corpus.documents(portion)] == documents
        assert "1 file (text with a document per line)" in corpus.describe()
        assert "so each is a document (else set corpus.lines=sentences)" in corpus.describe()
        assert not corpus.has_document_breaks
        assert read(tmp_path / name, lines="sentences") == [lines]
        assert list(open_corpus(config(tmp_path / name), join_files=True)) == [lines]  # as in Google's original
    for text in ("\n".join(lines[:9]), "\n".join(lines[:6]) + "\n\n" + "\n".join(lines), "Short one.\n" * 12):
        (tmp_path / "c.txt").write_text(text)
        assert len(read(tmp_path / "c.txt")) <= 2
    assert read(tmp_path / "c.txt", lines="documents") == [["Short one."]] * 12
    assert read(tmp_path / "a.txt", lines="documents", sentences="lines") == [[line] for line in lines]
    (tmp_path / "d.jsonl").write_text(jsonl(RECORDS))
    for changes in ({"lines": "documents"}, {"split": "test"}):
        with pytest.raises(InputError, match="has no effect on jsonl; leave it out"):
            read(tmp_path / "d.jsonl", **changes)


def test_hidden_folders_are_left_out_and_links_named(tmp_path: Path) -> None:
    for name in ("a/.ipynb_checkpoints/copy.txt", "a/1.txt", "b/2.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "a" / "linked").symlink_to(tmp_path / "b")
    (tmp_path / "a" / "gone.txt").symlink_to(tmp_path / "nowhere")
    corpus = open_corpus(config(tmp_path / "a"))
    assert list(corpus) == [["a/1.txt"]]
    assert corpus.describe().endswith("ignored 2 other (gone.txt, linked)")
