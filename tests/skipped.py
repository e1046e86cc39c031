"""The last line of tests/run.sh: how many tests were skipped, and what they need."""

import os
from collections import Counter
from pathlib import Path

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Write the line into the file that tests/run.sh names."""
    if "LAST_LINE" not in os.environ:
        return
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in terminalreporter.getreports("skipped"))
    needs = ", ".join(f"{number} ({reason:.100})" for reason, number in reasons.most_common())
    line = f"== {reasons.total()} tests were skipped: {needs}" if reasons else "== no test was skipped"
    Path(os.environ["LAST_LINE"]).write_text(f"{line}\n", encoding="utf-8")
