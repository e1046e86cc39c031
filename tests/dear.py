"""Which test files are dear: their processor seconds, with those of the processes that they start.

    DEAR=/tmp/dear tests/run.sh; python tests/dear.py /tmp/dear

Unlike durations, they are nearly the same on a busy machine. The time of a module's fixture is that of the first test that needs it.
"""

import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest


def note(test: str, seconds: float) -> None:
    """Append a line to the file that DEAR names, if any; all processes of the tests write to it."""
    if "DEAR" in os.environ:
        with open(os.environ["DEAR"], "a", encoding="utf-8") as file:
            file.write(f"{seconds:.3f} {test}\n")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    item.stash[STARTED] = sum(os.times()[:4])
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    try:
        return (yield)
    finally:
        note(item.nodeid, sum(os.times()[:4]) - item.stash[STARTED])


STARTED = pytest.StashKey[float]()


def by_file(lines: Iterable[str]) -> Counter[str]:
    """The seconds of each file in what `note` has written."""
    seconds: Counter[str] = Counter()
    for line in lines:
        spent, test = line.split(" ", 1)
        seconds[test.split("::")[0]] += float(spent)
    return seconds


if __name__ == "__main__":
    seconds = by_file(Path(sys.argv[1]).read_text(encoding="utf-8").splitlines())
    for name, total in seconds.most_common(20):
        print(f"{total:7.1f}  {name}")
    print(f"{sum(seconds.values()):7.1f}  all {len(seconds)} files")
