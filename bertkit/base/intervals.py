"""The valid values of numbers and texts, as annotations of settings: `num_beams: Annotated[int, Interval(1, 1000)]`, `steps: Size`."""

import operator
from typing import Annotated, NamedTuple

MAX_INT32 = 2**31 - 1


class Form(NamedTuple):
    """The valid form of a text, in its annotation."""

    pattern: str  # of the whole text
    expected: str  # describes it, with an example


class Interval(NamedTuple):
    """The valid values of a number, in its annotation; with `ends="[)"`, all from `low` to below `high`."""

    low: float
    high: float
    ends: str = "[]"

    def expected(self, value: float) -> str:
        """Return what a number outside of the interval should be; "" for a number inside."""
        is_above = _BEFORE[self.ends[0]](self.low, value)
        if is_above and _BEFORE[self.ends[1]](value, self.high):
            return ""
        low, high = (f"{end:,}" if isinstance(end, int) else f"{end:g}" for end in self[:2])
        if self.high < MAX_INT32:
            return _WORDS[self.ends].format(low, high)
        return f"at most {high}" if is_above else f"at least {low}" if self.ends[0] == "[" else "a positive number"


_BEFORE = {"[": operator.le, "(": operator.lt, "]": operator.le, ")": operator.lt}
_WORDS = {
    "[]": "{} to {}", "[)": "a number from {} to below {}", "(]": "a number above {}, up to {}", "()": "a number between {} and {}",
}  # fmt: skip
# whole numbers
Count = Annotated[int, Interval(0, MAX_INT32)]
Size = Annotated[int, Interval(1, MAX_INT32)]
Seed = Annotated[int, Interval(0, 2**63 - 1)]
# 32-bit floating-point numbers: any, without negative ones, and without 0; parts of 1, with and without 0 and 1
Real = Annotated[float, Interval(-1e38, 1e38)]
NotNegative = Annotated[float, Interval(0, 1e38)]
Positive = Annotated[float, Interval(0, 1e38, "(]")]
Share = Annotated[float, Interval(0, 1)]
ShareBelow1 = Annotated[float, Interval(0, 1, "[)")]
ShareInside = Annotated[float, Interval(0, 1, "()")]
