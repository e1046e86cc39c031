"""tests/run.sh and the scripts in .ci, in a checkout with two tests of its own and nothing to install; the workflows that run them."""

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from dear import by_file

ROOT = Path(__file__).resolve().parents[1]
TESTS = """\
import pytest
from browser import chromium

@pytest.mark.parametrize("number", range(3))
def test_a_page(number, tmp_path):
    with chromium(tmp_path):
        pass

def test_passes(): ...
"""


def write_script(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the scripts, with tests of which three need a browser; programs are found in `programs` alone."""
    root = tmp_path / "checkout"
    for name in (
        ".ci/run",
        ".ci/release",
        ".ci/versions",
        "tests/run.sh",
        "tests/browser.py",
        "tests/dear.py",
        "tests/skipped.py",
    ):
        (root / name).parent.mkdir(exist_ok=True, parents=True)
        shutil.copy(ROOT / name, root / name)
    (root / "tests/test_pages.py").write_text(TESTS)
    (root / "tests/conftest.py").write_text("from skipped import pytest_terminal_summary\n")
    (root / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    for name in ("docker/install.sh", ".venv/bin/ruff", ".venv/bin/typos", ".venv/bin/mypy"):
        write_script(root / name, "exit 0")
    write_script(root / ".venv/bin/python", f'case "$*" in *minilm*) exit 0; esac; exec {sys.executable} "$@"')
    (tmp_path / "programs").mkdir()
    for name in ("bash", "dirname", "mktemp", "cat", "rm", "env"):
        (tmp_path / "programs" / name).symlink_to(str(shutil.which(name)))
    write_script(tmp_path / "programs" / "nproc", "echo 1")
    return root


def output_of(script: Path, programs: Path, code: int = 0, *arguments: str) -> list[str]:
    done = subprocess.run(
        [script, *arguments], capture_output=True, text=True, env={**os.environ, "PATH": str(programs)}
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_the_last_line_counts_skipped_tests_and_says_what_they_need(checkout: Path, tmp_path: Path) -> None:
    output = output_of(checkout / "tests/run.sh", tmp_path / "programs")
    assert output[-1] == "== 3 tests were skipped: 3 (no browser: apt-get install chromium)"


BUSY = "import time; until = time.process_time() + 0.3\nwhile time.process_time() < until: pass\n"


def test_the_last_line_says_that_no_test_was_skipped_and_dear_files_are_named(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file's time is that of its tests and of their processes, whatever else the machine does."""
    monkeypatch.setenv("DEAR", str(tmp_path / "dear"))
    (checkout / "tests/conftest.py").write_text(
        "from dear import pytest_runtest_call, pytest_runtest_setup\nfrom skipped import pytest_terminal_summary\n"
    )
    (checkout / "tests/test_pages.py").write_text(
        "import subprocess, sys\n"
        f"def test_here(): exec({BUSY!r}, {{}})\n"
        f"def test_there(): subprocess.run([sys.executable, '-c', {BUSY!r}], check=True)\n"
    )
    (checkout / "tests/test_waiting.py").write_text("import time\ndef test_waits(): time.sleep(0.3)\n")
    assert output_of(checkout / "tests/run.sh", tmp_path / "programs")[-1] == "== no test was skipped"
    seconds = by_file((tmp_path / "dear").read_text().splitlines())
    assert seconds.keys() == {"tests/test_pages.py", "tests/test_waiting.py"}
    assert seconds["tests/test_pages.py"] > 0.5
    assert seconds["tests/test_waiting.py"] < 0.2


@pytest.mark.parametrize("has_network", [True, False])
def test_ci_installs_a_browser_or_says_that_it_cannot(has_network: bool, checkout: Path, tmp_path: Path) -> None:
    """And then runs the tests, with or without."""
    programs = tmp_path / "programs"
    log = tmp_path / "log.txt"
    write_script(programs / "apt-get", f'echo "$@" >> {log}; exit {0 if has_network else 100}')
    write_script(checkout / "tests/run.sh", 'echo "the tests ran, $@"; exit 3')
    *said, last = output_of(checkout / ".ci/run", programs, 3)
    assert last == "the tests ran, --durations=15"
    assert ("cannot install chromium" in "".join(said)) is not has_network
    assert [line.split()[-1] for line in log.read_text().splitlines()] == ["update", "chromium"][: 1 + has_network]
    log.unlink()
    write_script(programs / "chromium", "exit 0")
    assert output_of(checkout / ".ci/run", programs, 3) == [last]
    assert not log.exists()


def test_a_release_needs_the_tag_of_its_version(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "programs"
    write_script(checkout / "tests/run.sh", 'echo "tests: $@"')
    write_script(checkout / ".venv/bin/python", 'case "$*" in *version*) echo 1.2.3;; *) echo "$@";; esac')
    monkeypatch.setenv("GITHUB_REF_NAME", "v1.2.3")
    assert output_of(checkout / ".ci/release", programs) == [
        "tests: tests/test_release.py",
        "-m hatchling build -d dist",
    ]
    monkeypatch.setenv("GITHUB_REF_NAME", "v1.2.4")
    assert output_of(checkout / ".ci/release", programs, 2) == ["tests: tests/test_release.py"]


def test_other_versions_are_installed_before_the_tests(checkout: Path, tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    write_script(checkout / "tests/run.sh", 'echo "tests: $@"')
    packages = "printf 'numpy==2.0\\ntorch==9\\nyarl==1\\n'"
    write_script(
        checkout / ".venv/bin/python", f'case "$*" in *list*) {packages};; *torch.__*) echo 9+cpu;; *) echo "$@";; esac'
    )
    for name in ("sed", "grep"):
        (programs / name).symlink_to(str(shutil.which(name)))
    assert output_of(checkout / ".ci/versions", programs, 2, "middle") == []
    # without two tests of the versions that are pinned
    tests = re.compile(r"tests: --deselect \S+::test_every_package_is_pinned --deselect \S+_run_in_an_overlay -k masks")
    installed, last = output_of(checkout / ".ci/versions", programs, 0, "lowest", "-k", "masks")
    assert tests.fullmatch(last)
    assert installed.endswith("--upgrade --resolution lowest-direct torch==9+cpu -e .[test]")
    installed, last = output_of(checkout / ".ci/versions", programs, 0, "newest", "-k", "masks")
    assert tests.fullmatch(last)
    assert installed.endswith("--upgrade-package=numpy --upgrade-package=yarl torch==9+cpu -e .[test]")


def test_hooks_before_a_commit_are_the_checks_of_the_tests() -> None:
    (hooks,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    script = (ROOT / "tests/run.sh").read_text(encoding="utf-8")
    commands = re.findall(r"^\$bin/((?:ruff|typos|mypy).*?)(?: >.*)?$", script, re.MULTILINE)
    assert [hook["entry"] for hook in hooks["hooks"]] == [f".venv/bin/{command}" for command in commands]


def test_workflows_run_scripts_of_this_repository_with_pinned_actions_and_few_permissions() -> None:
    texts = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / ".github/workflows").iterdir()}
    assert sorted(texts) == ["nightly.yml", "release.yml", "tests.yml"]
    versions: dict[str, set[tuple[str, str]]] = {}
    scripts = set()
    for text in texts.values():
        workflow = yaml.safe_load(text)
        assert workflow["permissions"] == {"contents": "read"}
        for name, job in workflow["jobs"].items():
            assert job.get("permissions", {}) == ({"id-token": "write"} if name == "publish" else {})
            assert job["timeout-minutes"] <= 180
            scripts |= {step["run"].split()[0] for step in job["steps"] if "run" in step}
        pins = re.findall(r"uses: ([\w/-]+)@([0-9a-f]{40})  # (v\d+\.\d+\.\d+)\n", text)
        assert text.count("uses: ") == len(pins)
        for action, commit, version in pins:
            versions.setdefault(action, set()).add((commit, version))
    assert {action: len(found) for action, found in versions.items() if len(found) > 1} == {}
    assert len(versions) == 5
    assert scripts == {".ci/run", ".ci/release", ".ci/versions", "tests/run.sh"}
    assert all(os.access(ROOT / script, os.X_OK) for script in scripts)
