"""Pages from the templates in `pages/`, without network or other files, and tables for a page or a terminal.

jinja2, loaded with the first page, fills in the templates and escapes all text.
"""

from __future__ import annotations

import base64
import functools
import hashlib
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

    title: str  # on a page; may be empty
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """Write the table as Markdown, for a terminal."""
        lines = [self.columns, ["---"] * len(self.columns), *(map(shown, row) for row in self.rows)]
        head, rule, *rows = ("| " + " | ".join(line) + " |" for line in lines)
        return "\n".join([head.replace("|  |", "| |"), rule.replace(" ", ""), *rows])


def render(template: str, **values: Any) -> str:
    """Fill in a template from `pages/`."""
    return _templates().get_template(template).render(values)


@functools.cache
def source(file: str) -> str:
    """Read a file from `pages/`: a template, a style or a script."""
    return importlib.resources.files(__package__).joinpath("pages", file).read_text(encoding="utf-8")


@functools.cache
def serve_policy() -> str:
    """Give the Content-Security-Policy of serve.html: its own scripts alone, and requests to the server alone.

    The scripts of the attention page are allowed too, since a frame without an address has the policy of its page.
    """
    scripts = ["serve.js"], ["packing.js", "attention.js"], ["packing.js", "alignment.js"]
    digests = (hashlib.sha256("".join(map(source, files)).encode()).digest() for files in scripts)
    hashes = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


@functools.cache
def _templates() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined
    from markupsafe import Markup

    templates = Environment(
        autoescape=True, loader=FunctionLoader(source), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    templates.globals["source"] = lambda file: Markup(source(file))  # only our own files stay unescaped
    templates.filters |= {"named": named, "number": number, "shown": shown}
    return templates


def number(value: float) -> str:
    """Write a score: integers in full, others with four digits."""
    if isinstance(value, int) or value == 0:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}" if abs(value) >= 1 else f"{value:.4f}"


def named(metric: str) -> str:
    """Give the full name of a metric."""
    return NAMES.get(metric, metric.replace("_", " "))
