"""Lines of text files: cut at line feeds alone, unpacked, and refused with their number where they are no text."""

import gzip
import json
from pathlib import Path

import pytest

from bertkit.base.errors import InputError
from bertkit.base.json_stream import json_values
from bertkit.base.text_files import read_json, read_lines

TEXT = "\ufeffone\r\n\ntw\u2028o\x85\r3\n\ufeff\nend"
LINES = [(1, "one"), (2, ""), (3, "tw\u2028o\x85\r3"), (4, "\ufeff"), (5, "end")]


@pytest.mark.parametrize("text_bytes", [1, 7, 1 << 18])
@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "packed_without_saying_so"])
def test_read_lines_gives_numbered_lines_for_any_block_size(
    tmp_path: Path, name: str, text_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertkit.base.text_files.TEXT_BYTES", text_bytes)
    data = TEXT.encode()
    (tmp_path / name).write_bytes(data if name == "a.txt" else gzip.compress(data))
    assert list(read_lines(tmp_path / name)) == LINES


FAULTS = [
    (b"Stra\xdfe\n", "not UTF-8 (byte 0xdf at column 5); convert the file to UTF-8"),
    (b"\xe2\x80", "not UTF-8 (byte 0xe2 at column 1); convert the file to UTF-8"),
    (b"ab\0c", "not text (a zero byte at column 3); remove the file, or convert it to UTF-8"),
]


@pytest.mark.parametrize(("line", "message"), FAULTS)
@pytest.mark.parametrize("text_bytes", [2, 1 << 18])
def test_lines_before_bad_line_are_read(
    tmp_path: Path, line: bytes, message: str, text_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertkit.base.text_files.TEXT_BYTES", text_bytes)
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\n\n" + line)
    lines = read_lines(path)
    assert [next(lines), next(lines)] == [(1, "one"), (2, "")]
    with pytest.raises(InputError) as caught:
        next(lines)
    assert str(caught.value) == f"{path}:3: {message}"


@pytest.mark.parametrize("content", [b"plain\n", gzip.compress(b"one\n" * 999, mtime=0)[:-9]])
def test_a_damaged_gzip_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.gz").write_bytes(content)
    with pytest.raises(InputError, match=r"a\.gz: damaged"):
        list(read_lines(tmp_path / "a.gz"))
    with pytest.raises(InputError, match=r"b\.gz: no such file"):
        list(read_lines(tmp_path / "b.gz"))


VALUES = [{"a": "\u00e9, ]\n", "b": [[1], {}]}, -12.5e1, "\u2028", [], None, True, [12345678, 9]]


@pytest.mark.parametrize("text_bytes", [1, 7, 1 << 18])
@pytest.mark.parametrize("indent", [None, 1])
def test_json_values_are_read_in_blocks_of_any_size(
    tmp_path: Path, text_bytes: int, indent: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertkit.base.text_files.TEXT_BYTES", text_bytes)
    monkeypatch.setattr("bertkit.base.json_stream.WHOLE_MB", 0.0005)  # of a single value
    path, written = tmp_path / "a.json", [json.dumps(value, indent=indent, ensure_ascii=False) for value in VALUES]
    for text, is_array in (("\ufeff[" + ",\n\n".join(written * 9) + "]", True), ("\n\n".join(written * 9), False)):
        path.write_text(text, encoding="utf-8")
        actual = list(json_values(path, read_lines(path, in_blocks=True)))
        assert [value for _, value, _ in actual] == VALUES * 9
        lines = [1]
        for one in (written * 9)[:-1]:
            lines.append(lines[-1] + one.count("\n") + 2)
        assert [line for line, _, _ in actual] == lines
        assert [text for _, _, text in actual] == (["" for _ in actual] if is_array else written * 9)
    path.write_text('[{"a": 1},\n2]\n[3]\n{"a": 4}\n', encoding="utf-8")  # arrays in files that were joined
    actual = list(json_values(path, read_lines(path, in_blocks=True)))
    assert [(line, value) for line, value, _ in actual] == [(1, {"a": 1}), (2, 2), (3, 3), (4, {"a": 4})]
    for text, line in (
        ("[1]\n]", 2),
        ('[{"a": 1},\n{"a": }' + " " * 999, 2),
        ("[1,\n2", 2),
        ('{"a": "\n', 1),
        ('["' + "a" * 1_000_000 + '"]', 1),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match=rf"a\.json:{line}: "):
            list(json_values(path, read_lines(path, in_blocks=True)))
    path.write_bytes(b'[\n"a\xff"]')
    with pytest.raises(InputError, match=r"a\.json:2: not UTF-8 \(byte 0xff\)"):
        list(json_values(path, read_lines(path, in_blocks=True)))


@pytest.mark.parametrize(("text", "message"), [(None, "no such file"), (b"{", "not JSON"), (b"\xff", "not JSON")])
def test_read_json_says_which_file(tmp_path: Path, text: bytes | None, message: str) -> None:
    path = tmp_path / "a.json"
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(InputError, match=rf"a\.json: {message}"):
        read_json(path)
