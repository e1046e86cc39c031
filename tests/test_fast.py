"""Which fast ways there are, and which are chosen."""

from __future__ import annotations

import pytest

from bertkit.kernels.fast import ALL, ANYWHERE, NAMES, ON_CPU, ON_CUDA, PLAIN, FastWays, choose


def test_names() -> None:
    assert len(NAMES) == 8
    assert {*ON_CPU, *ON_CUDA} == set(NAMES)
    assert (PLAIN.names, ALL.names) == ((), NAMES)
    assert FastWays.of(["even_rows", "short_dropout"]).names == ("short_dropout", "even_rows")
    with pytest.raises(TypeError, match="even_row"):
        FastWays.of(["even_row"])


def test_none_can_be_chosen() -> None:
    assert choose("plain") == PLAIN
    assert set(ANYWHERE.names) <= set(choose("auto").names) <= set(NAMES)
