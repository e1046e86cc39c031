"""metrics.jsonl: rows survive a crash, and are cut back on resume."""

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bertkit.train.log import MetricsLog, Window, read_metrics
from bertkit.train.train_config import LogConfig


def write(path: Path, steps: range, last_step: int) -> None:
    log = MetricsLog(path, last_step)
    for step in steps:
        log.write({"step": step, "loss": 1 / step})
    log.close()


def test_rows_after_the_checkpoint_are_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, range(1, 8), 0)
    assert [row["step"] for row in read_metrics(path)] == [1, 2, 3, 4, 5, 6, 7]
    write(path, range(5, 7), 4)
    assert read_metrics(path) == [{"step": step, "loss": 1 / step} for step in range(1, 7)]
    write(path, range(0), 0)
    assert path.read_text() == ""


def test_a_row_is_on_the_disk_when_it_is_written(tmp_path: Path) -> None:
    assert read_metrics(tmp_path / "metrics.jsonl") == []
    log = MetricsLog(tmp_path / "metrics.jsonl", 0)
    log.write({"step": 1})
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 1}]
    log.close()


def test_a_row_cut_short_by_a_crash_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, range(1, 4), 0)
    text = path.read_text()
    for end in range(len(text)):
        path.write_text(text[:end])
        whole = [json.loads(line) for line in text[:end].splitlines() if line.endswith("}")]
        assert read_metrics(path) == whole
    path.write_text(text[:-5])
    write(path, range(3, 5), 2)  # a row after a cut one is not glued to it
    assert [row["step"] for row in read_metrics(path)] == [1, 2, 3, 4]


def test_what_a_power_cut_leaves_is_healed(tmp_path: Path) -> None:
    """Blocks that the file system reserved but never wrote contain zeros or old data."""
    path = tmp_path / "metrics.jsonl"
    for left in (b"\0" * 37, b'{"step": 3, "lo\0\0\0\0\n', b'\xff\xfe{"step": 3}\n', b"17\n", b'{"loss": 1}\n', b"[]"):
        write(path, range(1, 3), 0)
        with path.open("ab") as file:
            file.write(left)
        assert [row["step"] for row in read_metrics(path)] == [1, 2]
        write(path, range(3, 5), 2)
        assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 3, 4]


SYNCS = """
import sys
from pathlib import Path
from bertkit.train.log import MetricsLog

log = MetricsLog(Path(sys.argv[1]), 0)
log.write({"step": 1})
log.sync()
log.sync()
log.write({"step": 2})
log.close()
"""


def test_rows_are_flushed_to_the_disk(tmp_path: Path) -> None:
    """Once each, and the last ones by close()."""
    if shutil.which("strace") is None:
        pytest.skip("needs strace, which tells what is flushed")
    path = tmp_path / "metrics.jsonl"
    traced = ["strace", "-y", "-e", "trace=write,fsync", "-o", tmp_path / "calls", sys.executable, "-c", SYNCS, path]
    done = subprocess.run(traced, capture_output=True, text=True)
    if not (tmp_path / "calls").is_file() or "ptrace" in done.stderr:
        pytest.skip(f"strace is not allowed to: {done.stderr}")
    assert done.returncode == 0, done.stderr
    calls = [call.split("(")[0] for call in (tmp_path / "calls").read_text().splitlines() if f"<{path}>" in call]
    assert calls == ["write", "fsync", "write", "fsync"]


@pytest.mark.parametrize(
    ("steps", "every"),
    [(1, 1), (99, 1), (149, 2), (240, 2), (400, 5), (1000, 10), (2400, 20), (10_000, 100), (7038, 100)],
)
def test_about_a_hundred_lines_a_run(steps: int, every: int) -> None:
    assert LogConfig("auto", ()).every_of(steps) == every
    assert LogConfig(7, ()).every_of(steps) == 7


def test_a_window_gives_means_of_what_each_step_had_and_begins_anew() -> None:
    window = Window()
    for values in ({"loss": 2.0, "nsp_loss": 1.0}, {}, {"loss": 3.0}):
        window.add(values)
    again = Window(**json.loads(json.dumps(dataclasses.asdict(window))))
    assert again.close() == window.close() == {"loss": 2.5, "nsp_loss": 1.0}
    assert window.close() == {}
