"""A queue's thread computes jobs together, and lives as long as the server: only a job that fails alone fails."""

import asyncio
from dataclasses import dataclass

import pytest
from prometheus_client import CollectorRegistry, Gauge

from bertkit.apps.server.queues import Queue, RefusedError
from bertkit.base.errors import InputError, LibraryError, NumericsError

PanicException = type("PanicException", (BaseException,), {})
FAULTS: dict[str, BaseException] = {
    "numbers": NumericsError("not finite"), "type": IndexError("3"), "panic": PanicException("of a library"),
    "library": LibraryError("failed on a text"), "input": InputError("expected a text"), "large": RefusedError(413, "too_large", "no"),
}  # fmt: skip


@dataclass(frozen=True)
class Upper:
    """Writes texts in capitals; one that names a fault fails with all that are computed with it."""

    def compute(self, inputs: list[str]) -> list[str]:
        for text in inputs:
            if text in FAULTS:
                raise FAULTS[text]
        return [text.upper() for text in inputs]


def test_a_job_fails_alone(capsys: pytest.CaptureFixture[str]) -> None:
    async def ask(texts: list[str]) -> list[object]:
        queue = Queue(100, 100, 30, Gauge("waiting", "", registry=CollectorRegistry()))
        try:
            jobs = [queue.submit(Upper(), text, 1) for text in texts]
            return list(await asyncio.gather(*jobs, return_exceptions=True))
        finally:
            await asyncio.wait_for(queue.close(), 10)

    texts = [text for fault in FAULTS for text in ("kan", fault, "min")]
    expected = {
        "numbers": (500, "failed"),
        "type": (500, "failed"),
        "panic": (500, "failed"),
        "library": (500, "failed"),
    }
    for text, result in zip(texts, asyncio.run(ask(texts)), strict=True):
        if text in expected:
            assert isinstance(result, RefusedError)
            assert (result.status_code, result.code) == expected[text]
        else:
            assert result == FAULTS.get(text, text.upper())
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert lines == [
        "error: a request failed: the model failed: not finite",
        "error: a request failed: the server failed: IndexError",
        "error: a request failed: the server failed: PanicException",
        "error: a request failed: the model failed: failed on a text",
    ]
