"""What this machine's processors lack, and that others use them: real forks, real signals, real competitors."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import output_of, refused, small_model

from bertkit import cli, export_model, load_embedder, load_model
from bertkit.apps.server import server
from bertkit.base import memory, processors
from bertkit.base.errors import InputError
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.launch import launcher, sweep

ISA = "ONEDNN_MAX_CPU_ISA"
SAID = (
    "warning: this machine promises the instruction amx_bf16 and does not have it; bf16 works without it "
    "(ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16), but slower: fp32 may be faster"
)


class Planted:
    """A processor that promises AMX; a product with it ends the process, as oneDNN's does, which chooses once."""

    def __init__(self, path: Path, flags: str) -> None:
        path.write_text(f"processor : 0\nflags : fpu {flags} avx2\n")
        self.has_chosen_amx = False

    def multiply(self) -> None:
        if self.has_chosen_amx or ISA not in os.environ:
            os.kill(os.getpid(), signal.SIGILL)


@pytest.fixture(scope="module")
def small_dir(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_model(small_model(tokenizer.vocab_size), tokenizer, tmp_path_factory.mktemp("model") / "small")


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Planted]:
    ones = torch.ones(64, 64, dtype=torch.bfloat16)
    ones @ ones  # where the fault is real, oneDNN chooses now, with the variable that conftest.py has set
    fault = Planted(tmp_path / "cpuinfo", "amx_bf16")
    monkeypatch.setattr(processors, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(processors, "_multiply", fault.multiply)
    monkeypatch.setenv(ISA, "")  # so that it is restored
    del os.environ[ISA]
    processors.check_precision.cache_clear()
    yield fault
    processors.check_precision.cache_clear()


def test_a_missing_instruction_is_avoided(
    planted: Planted, small_dir: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "texts.txt").write_text("ka lo\n")
    settings = [
        f"model_dir={small_dir}",
        f"input={tmp_path / 'texts.txt'}",
        f"output={tmp_path / 'vectors.npy'}",
        "overwrite=true",
    ]
    assert cli.run(["embed", *settings, "precision=fp32"]) == 0
    assert cli.run(["embed", *settings, "precision=bf16", "device=cuda"]) == 2
    assert ISA not in os.environ
    assert SAID not in capfd.readouterr().err
    for _ in range(2):
        assert cli.run(["embed", *settings, "precision=bf16"]) == 0
    assert os.environ[ISA] == "AVX512_CORE_BF16"
    assert capfd.readouterr().err.splitlines().count(SAID) == 1


@pytest.mark.parametrize("how", ["a sweep", "workers", "serve", "load_embedder", "load_model"])
def test_every_entry_point_sets_isa_before_first_product(
    how: str, planted: Planted, small_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepared_dir: Path
) -> None:
    """Child processes inherit the environment."""
    seen = list[str | None]()

    def look(*_: Any) -> int:
        seen.append(os.environ.get(ISA))
        return 0

    monkeypatch.setattr(sweep, "run_each", look)
    monkeypatch.setattr(launcher, "run_in_workers", lambda *_: look() == 0)
    monkeypatch.setattr(server, "run", look)
    arguments = ["precision=bf16", f"model_dir={small_dir}"]
    if how == "a sweep":
        assert cli.run(["embed", "-m", *arguments, "input=-", "output=-", "batch_tokens=7,11"]) == 0
    elif how == "workers":
        assert (
            cli.run(["pretrain", arguments[0], f"data_dir={prepared_dir}", "output_dir=.", "launch.num_processes=2"])
            == 0
        )
    elif how == "serve":
        assert cli.run(["serve", *arguments]) == 0
    elif how == "load_embedder":
        look(load_embedder(small_dir, precision="bf16"))
    else:
        look(load_model(small_dir))
    assert seen == ["AVX512_CORE_BF16"]


def test_missing_amx_after_first_product_is_an_error(
    planted: Planted, small_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planted.has_chosen_amx = True
    code = cli.run(["embed", f"model_dir={small_dir}", "input=-", "output=-", "precision=bf16"])
    refused(code, "start Python anew with ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in the environment", capsys)
    with pytest.raises(InputError, match="precision=bf16: this machine promises the instruction amx_bf16"):
        load_embedder(small_dir, precision="bf16")
    assert ISA not in os.environ
    load_model(small_dir)  # its user may want float32
    assert "amx_bf16" in capsys.readouterr().err


@pytest.mark.parametrize("case", ["other processors", "no Linux", "set by the user", "it is there", "it hangs"])
def test_isa_is_left_alone_on_other_machines(
    case: str, planted: Planted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    tried = tmp_path / "tried"
    outcome = {"it is there": torch.ones(1).numpy, "it hangs": lambda: time.sleep(60)}.get(case, planted.multiply)
    monkeypatch.setattr(processors, "_multiply", lambda: (tried.touch(), outcome()))
    monkeypatch.setattr(processors, "PROBE_SECONDS", 1)
    if case == "other processors":
        Planted(processors.CPUINFO, "avx512_bf16")
    elif case == "no Linux":
        processors.CPUINFO.unlink()
    elif case == "set by the user":
        monkeypatch.setenv(ISA, "AVX512_CORE_AMX")
    before = dict(os.environ)
    processors.check_precision("bf16", "auto")
    assert os.environ == before
    assert tried.exists() == (case in ("it is there", "it hangs"))
    assert capfd.readouterr().err == ""


def test_product_on_this_processor_works() -> None:
    assert not processors._ends_by_product()


def test_threads_fit_the_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "pod" / "container"
    own.mkdir(parents=True)
    (tmp_path / "own").write_text("0::/pod/container\n")
    monkeypatch.setattr(memory, "CGROUPS", tmp_path)
    monkeypatch.setattr(memory, "OWN_CGROUP", tmp_path / "own")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(7)))
    monkeypatch.setenv("GOMP_SPINCOUNT", "100")
    assert processors.num_processors() == 7
    (own / "cpu.max").write_text("max 100000\n")
    assert processors.num_processors() == 7
    (tmp_path / "pod" / "cpu.max").write_text("250000 100000\n")
    assert processors.num_processors() == 3
    (own / "cpu.max").write_text("50000 100000\n")
    assert processors.num_processors() == 1
    before = torch.get_num_threads()
    torch.set_num_threads(5)
    try:
        monkeypatch.setenv("OMP_NUM_THREADS", "5")
        processors.fit_threads()
        assert torch.get_num_threads() == 5
        monkeypatch.delenv("OMP_NUM_THREADS")
        processors.fit_threads()
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
    printed = capsys.readouterr().err
    assert printed == "threads: 1, by the quota of this container; OMP_NUM_THREADS sets another number\n"


WATCHED = """
import os, time, torch
from bertkit.base import processors
torch.set_num_threads(2)
torch.ones(1 << 20) + 1  # starts torch's threads
processors.WATCH_SECONDS, delay = 0.01, 0.0
processors._delays = lambda: {"1": time.monotonic() * delay}
processors.share_processors()
def num_threads(): return len(os.listdir("/proc/self/task"))
def until(number):
    end = time.monotonic() + 20
    while num_threads() != number and time.monotonic() < end:
        time.sleep(0.01)
    print(num_threads() - before)
before = num_threads()
time.sleep(0.2)
for delay in (0.01, 0.5, 0.5, 0.01):
    until(before + more if (more := processors.num_processors() * (delay > 0.1)) else before)
"""


def test_threads_sleep_only_while_processors_are_oversubscribed(python: Path) -> None:
    """More OpenMP threads than processors, while threads wait for a processor."""
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    num_more = str(max(1, processors.num_processors() - 1))
    code = WATCHED.replace("processors.num_processors() *", f"{num_more} *")
    assert output_of([python, "-c", code], env=environment).split() == ["0", num_more, num_more, "0"]
    unwatched = {**environment, "OMP_WAIT_POLICY": "active"}
    process = subprocess.run(
        [python, "-c", code.replace("+ 20", "+ 0.2")], env=unwatched, capture_output=True, text=True
    )
    assert process.stdout.split() == ["0"] * 4, process.stderr


RATE = """
import os, sys, time
os.sched_setaffinity(0, set(map(int, sys.argv[1].split())))
import torch
from bertkit.base import processors
torch.set_num_threads(2)
processors.share_processors()
numbers, start, count = torch.ones(1 << 17), time.monotonic(), 0
while (seconds := time.monotonic() - start) < 3:
    numbers.mul_(1.0)  # by two threads
    numbers[:9000].mul_(1.0)  # by one
    count += seconds > 1
print(count)
"""


@pytest.mark.slow  # a comparison of speeds, which other tests on the same processors disturb
def test_threads_do_not_spin_beside_busy_processes(python: Path) -> None:
    """Two threads on two processors that two processes use, too: without the watch they would spin in vain."""
    both = sorted(os.sched_getaffinity(0))[:2]
    if len(both) < 2:
        pytest.skip("one processor: there is one thread")
    busy = [
        subprocess.Popen([sys.executable, "-c", f"import os\nos.sched_setaffinity(0, {set(both)})\nwhile True: pass"])
        for _ in both
    ]
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    try:
        ours, theirs = (
            int(output_of([sys.executable, "-c", RATE, " ".join(map(str, both))], env={**environment, **more}))
            for more in ({}, {"GOMP_SPINCOUNT": "300000"})
        )
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert ours > 2 * theirs
