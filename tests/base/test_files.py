"""Nothing half-written is ever visible; one process at a time."""

import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bertkit.base import files
from bertkit.base.errors import InputError, LockedError, StorageError
from bertkit.base.text_files import read_json

HOLDER = """
import sys, time
from pathlib import Path
from bertkit.base.files import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def content(directory: Path) -> dict[str, str]:
    return {str(p.relative_to(directory)): p.read_text() for p in sorted(directory.rglob("*")) if p.is_file()}


def test_building_dir_publishes(tmp_path: Path) -> None:
    final = tmp_path / "deep" / "final"
    with files.building_dir(final) as partial:
        (partial / "a").write_text("1")
        (partial / "sub").mkdir()
        (partial / "sub" / "b").write_text("2")
        assert not final.exists()
    assert content(final) == {"a": "1", "sub/b": "2"}
    assert [path.name for path in final.parent.iterdir()] == ["final"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("old", [{}, {"final/a": "old"}])
def test_building_dir_leaves_what_was_there_after_an_error(
    tmp_path: Path, error: type[BaseException], old: dict[str, str]
) -> None:
    def build(text: str) -> None:
        with files.building_dir(tmp_path / "final") as partial:
            (partial / "a").write_text(text)
            if text == "new":
                raise error

    for text in old.values():
        build(text)
    with pytest.raises(error):
        build("new")
    assert content(tmp_path) == old
    assert len(list(tmp_path.iterdir())) == len(old)


def test_names_as_long_as_a_file_system_allows(tmp_path: Path) -> None:
    for name in ("a" * 255, "é" * 127):
        files.write_durably(tmp_path / name, "1")
        for text in ("2", "3"):
            with files.building_dir(tmp_path / f"d{name[:-1]}") as partial:
                (partial / "a").write_text(text)
        assert content(tmp_path) == {name: "1", f"d{name[:-1]}/a": "3"}
        files.remove_dir(tmp_path / f"d{name[:-1]}")
        (tmp_path / name).unlink()


def test_building_dir_starts_empty_after_a_crash(tmp_path: Path) -> None:
    left = tmp_path / "final.partial"
    (left / "sub").mkdir(parents=True)
    (left / "half").write_text("half")
    with files.locked(left):  # as the builder did, which is how it is known to be bertkit's
        pass
    with files.building_dir(tmp_path / "final") as partial:
        (partial / "a").write_text("1")
    assert content(tmp_path) == {"final/a": "1"}


def folder(path: Path) -> None:
    path.mkdir()
    (path / "notes").write_text("mine")


@pytest.mark.parametrize(
    "make", [folder, lambda path: path.symlink_to("elsewhere"), lambda path: path.write_text("mine")]
)
def test_foreign_files_are_not_taken_for_leftovers(make: Callable[[Path], None], tmp_path: Path) -> None:
    folder(tmp_path / "elsewhere")
    make(tmp_path / "final.partial")
    before = content(tmp_path)
    with pytest.raises(InputError, match=r"final.partial is there already"), files.building_dir(tmp_path / "final"):
        pass
    assert content(tmp_path) == before
    (tmp_path / "a.partial").symlink_to(tmp_path / "elsewhere" / "notes")
    files.write_durably(tmp_path / "a", "new")  # whatever has its partial name is replaced, not what a link points to
    assert content(tmp_path) == before | {"a": "new"}


def test_a_slower_writer_does_not_publish_the_file_of_another(tmp_path: Path) -> None:
    """The first one does not publish what the second one has begun."""

    def write() -> None:
        with files.writing(tmp_path / "a") as first:
            first.write("first")
            (tmp_path / "second").touch()
            (tmp_path / "second").replace(tmp_path / "a.partial")

    with pytest.raises(InputError, match="another command is writing the same file"):
        write()
    assert content(tmp_path) == {"a.partial": ""}


def test_a_slower_writer_whose_file_another_has_published_is_told(tmp_path: Path) -> None:
    def write() -> None:
        with files.writing(tmp_path / "a") as first:
            first.write("first")
            with files.writing(tmp_path / "a") as second:
                second.write("second")

    with pytest.raises(InputError, match="another command is writing the same file"):
        write()
    assert content(tmp_path) == {"a": "second"}


def test_a_lock_that_is_not_bertkits_stays(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    for make in (lambda path: path.symlink_to(tmp_path / "notes"), Path.mkdir):
        make(tmp_path / files.LOCK)
        with pytest.raises(InputError, match="was not made by bertkit"), files.locked(tmp_path):
            pass
        files.remove(tmp_path / files.LOCK)
    assert (tmp_path / "notes").read_text() == "mine"


def test_a_folder_where_nothing_may_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(lock: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("filelock.FileLock.acquire", refuse)  # the tests may run as root, who may write everywhere
    with pytest.raises(InputError, match=f"{tmp_path} is not writable; choose another folder"), files.locked(tmp_path):
        pass


def test_a_folder_in_one_that_is_not_writable_names_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = Path.mkdir

    def refuse(path: Path, **more: bool) -> None:
        if path.name == "out.partial":
            raise PermissionError(errno.EACCES, "Permission denied")
        make(path, **more)

    (tmp_path / "out").mkdir()
    monkeypatch.setattr(Path, "mkdir", refuse)
    wrong = (
        f"{tmp_path} is not writable, where out is first written as out.partial; name a new folder in {tmp_path}/out"
    )
    with pytest.raises(InputError, match=f"^{wrong}, or one"), files.building_dir(tmp_path / "out"):
        pass


def test_a_partial_file_is_removed_when_the_disk_is_full(tmp_path: Path) -> None:
    def fill(error: OSError) -> None:
        with files.writing(tmp_path / "a") as file:
            file.write("half")
            raise error

    with pytest.raises(OSError, match="full") as caught:
        fill(OSError(errno.ENOSPC, "full"))
    assert caught.value.filename == str(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OSError, match="else"):
        fill(OSError(errno.EPERM, "else"))
    assert content(tmp_path) == {"a.partial": "half"}


def test_one_process_at_a_time_until_it_is_killed(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(LockedError) as caught, files.locked(tmp_path):
            pass
        assert f"process {holder.pid} on {socket.gethostname()}" in str(caught.value)
        assert str(tmp_path) in str(caught.value)
        with pytest.raises(LockedError, match=str(holder.pid)), files.locked(tmp_path):
            pass  # a refusal does not wipe out the holder's name
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        holder.stdout.close()
    with files.locked(tmp_path):
        assert f"process {os.getpid()} " in (tmp_path / files.LOCK).read_text()
    with files.locked(tmp_path):
        pass


def test_building_dir_refuses_while_another_process_builds(tmp_path: Path) -> None:
    partial = tmp_path / "final.partial"
    partial.mkdir()
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(partial)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        (partial / "theirs").write_text("1")
        with pytest.raises(LockedError), files.building_dir(tmp_path / "final"):
            pass
        assert (partial / "theirs").read_text() == "1"
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        holder.stdout.close()


def test_write_durably_replaces_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    files.write_durably(path, "été\n")
    assert path.read_bytes() == "été\n".encode()
    synced: list[str] = []
    before = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        before(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    files.write_durably(path, b"new")
    assert path.read_bytes() == b"new"
    assert synced == ["a.json.partial", tmp_path.name]  # the content before the name, then the directory
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]


def test_publish_dir_flushes_every_file_and_replaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    final, partial = tmp_path / "final", tmp_path / "final.partial"
    for directory, text in ((final, "old"), (partial, "new")):
        (directory / "sub").mkdir(parents=True)
        for name in ("a", "sub/b"):
            (directory / name).write_text(text)
    synced: set[str] = set()
    before = os.fsync

    def fsync(descriptor: int) -> None:
        synced.add(os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), tmp_path))
        before(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    files.publish_dir(partial, final)
    assert content(tmp_path) == {"final/a": "new", "final/sub/b": "new"}
    assert {f"final.partial{name}" for name in ("", "/a", "/sub", "/sub/b")} | {"."} <= synced


def test_remove_leftovers_takes_only_leftovers(tmp_path: Path) -> None:
    (tmp_path / "step-1.partial" / "sub").mkdir(parents=True)
    (tmp_path / "a.json.partial").write_text("half")
    (tmp_path / ".step-0.trash").mkdir()
    (tmp_path / "step-2").mkdir()
    (tmp_path / ".lock").write_text("")
    (tmp_path / "partial").write_text("a name that only looks like one")
    (tmp_path / "mine.jsonl.partial").write_text("what a user has")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "step-1.partial").mkdir()
    (tmp_path / "step-3.partial").symlink_to(tmp_path / "linked")
    (tmp_path / "link").symlink_to(tmp_path / "linked")
    for folder in (tmp_path, tmp_path / "link"):
        files.remove_leftovers(folder, r"step-\d+|a\.json")
    left = [".lock", "link", "linked", "mine.jsonl.partial", "partial", "step-2"]
    assert sorted(path.name for path in tmp_path.iterdir()) == left
    assert (tmp_path / "linked" / "step-1.partial").is_dir()


def test_what_has_the_name_of_bertkits_trash_is_kept(tmp_path: Path) -> None:
    for name in ("out", ".out.trash"):
        folder(tmp_path / name)
    before = content(tmp_path)
    with pytest.raises(InputError, match=r"/\.out\.trash is in the way of out"), files.building_dir(tmp_path / "out"):
        pass
    assert content(tmp_path) == before


def test_remove_dir_refuses_folder_with_foreign_trash(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    folder(tmp_path / ".a.trash")  # whose it is, nobody knows
    with pytest.raises(OSError, match="not empty"):
        files.remove_dir(tmp_path / "a")
    files.remove(tmp_path / ".a.trash")
    files.remove_dir(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_require_space_refuses_more_than_is_free(tmp_path: Path) -> None:
    files.require_space(tmp_path, 1)
    files.require_space(Path("/proc"), 10**18)  # a file system that reports no sizes
    with pytest.raises(StorageError, match=r"no space left on .*: need 1000000000000.0 MB, have \d+.\d MB"):
        files.require_space(tmp_path, 10**18)


def test_json_is_indented_utf8_without_nan(tmp_path: Path) -> None:
    assert files.to_json({"b": "é", "a": [1]}) == '{\n  "b": "é",\n  "a": [\n    1\n  ]\n}\n'
    with pytest.raises(ValueError, match="JSON"):
        files.to_json({"a": float("nan")})
    files.write_durably(tmp_path / "a", files.to_json({"b": 1}))
    assert read_json(tmp_path / "a") == {"b": 1}
    (tmp_path / "abc").write_text("abc")
    assert files.sha256_file(tmp_path / "abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_a_killed_builder_leaves_only_a_partial(tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom bertkit.base.files import building_dir\n"
        "with building_dir(Path(sys.argv[1])) as partial:\n"
        "    (partial / 'a').write_text('1')\n    print('writing', flush=True)\n    time.sleep(60)\n"
    )
    builder = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "final")], stdout=subprocess.PIPE, text=True)
    assert builder.stdout is not None
    assert builder.stdout.readline() == "writing\n"
    os.kill(builder.pid, signal.SIGKILL)
    builder.wait()
    builder.stdout.close()
    assert [path.name for path in tmp_path.iterdir()] == ["final.partial"]
    with files.building_dir(tmp_path / "final") as partial:
        (partial / "b").write_text("2")
    assert content(tmp_path) == {"final/b": "2"}
