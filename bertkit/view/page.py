"""Pages that need no network and no other file, made of the templates in `pages/`, and tables for a page or a terminal.

jinja2 fills the templates in and escapes all text that it is given. It is loaded with the first page.
"""

from __future__ import annotations

import functools
import importlib.resources
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bertkit.base.errors import shown

if TYPE_CHECKING:
    from jinja2 import Environment

NAMES = {
    "f1": "F1",
    "f1_macro": "macro F1",
    "f1_micro": "micro F1",
    "overall_f1": "F1 of entities",
    "exact": "exact match",
    "pearson": "Pearson correlation",
    "spearmanr": "Spearman correlation",
    "matthews_correlation": "Matthews correlation",
}


@dataclass(frozen=True)
class Table:
    """Rows of text, for a terminal or for a page."""

    title: str  # on a page; "" for none
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """Write it for a terminal."""
        lines = [self.columns, ["---"] * len(self.columns), *(map(shown, row) for row in self.rows)]
        head, rule, *rows = ("| " + " | ".join(line) + " |" for line in lines)
        return "\n".join([head.replace("|  |", "| |"), rule.replace(" ", ""), *rows])


def render(template: str, **values: Any) -> str:
    """Fill in a template of `pages/`."""
    return _templates().get_template(template).render(values)


@functools.cache
def source(file: str) -> str:
    """Give a file of `pages/` as it is: a template, a style or a script."""
    return importlib.resources.files(__package__).joinpath("pages", file).read_text(encoding="utf-8")


@functools.cache
def _templates() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined
    from markupsafe import Markup

    found = Environment(
        autoescape=True, loader=FunctionLoader(source), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    found.globals["source"] = lambda file: Markup(source(file))  # our own files alone are put in unescaped
    found.filters |= {"named": named, "number": number, "shown": shown}
    return found


def number(value: float) -> str:
    """Write a score: a whole number as it is, others with four digits."""
    if isinstance(value, int) or value == 0:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}" if abs(value) >= 1 else f"{value:.4f}"


def named(metric: str) -> str:
    """Write the name of a metric for people."""
    return NAMES.get(metric, metric.replace("_", " "))
