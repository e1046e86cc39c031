"""Pages from the templates in `pages/`, and tables for a page or a terminal. A page needs no other file and no network.

jinja2, imported with the first page, fills in the templates and escapes all text, control characters too.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.resources
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bertkit.base.errors import shown

if TYPE_CHECKING:
    from jinja2 import Environment

METRIC_NAMES = {  # for readers, where they are not the words of the key
    "f1_macro": "macro F1",
    "f1_micro": "micro F1",
    "overall_f1": "F1 of entities",
    "exact": "exact match",
    "exact_match_text": "exact match",
    "pearson": "Pearson correlation",
    "spearmanr": "Spearman correlation",
    "rmse": "RMSE",
    "mae": "MAE",
    "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2",
    "rougeL": "ROUGE-L",
}
METRIC_WORDS = {
    "f1": "F1",
    "r2": "R²",
    "mlm": "MLM",
    "nsp": "NSP",
    "lm": "LM",
    "bleu": "BLEU",
    "chrf": "chrF",
    "matthews": "Matthews",
    "grad": "gradient",
}


@dataclass(frozen=True)
class Table:
    """A table of texts, for a terminal or for a page."""

    title: str  # shown only on a page; may be empty
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """Return the table as Markdown, for a terminal."""
        lines = [self.columns, ["---"] * len(self.columns), *(map(shown, row) for row in self.rows)]
        head, rule, *rows = ("| " + " | ".join(line) + " |" for line in lines)
        return "\n".join([head.replace("|  |", "| |"), rule.replace(" ", ""), *rows])


def render(template: str, **values: object) -> str:
    """Fill in a template of `pages/`."""
    return _templates().get_template(template).render(values)


@functools.cache
def page_file(file: str) -> str:
    """Read a file of `pages/`: a template, a style or a script."""
    return importlib.resources.files(__package__).joinpath("pages", file).read_text(encoding="utf-8")


@functools.cache
def serve_policy() -> str:
    """Return the Content-Security-Policy of serve.html: only its own scripts, and only requests to the server.

    The scripts of the attention page are allowed too: it is shown in a frame, which inherits the policy.
    """
    scripts = ["serve.js"], ["packing.js", "attention.js"], ["packing.js", "alignment.js"]
    return policy(" ".join(hash_of("".join(map(page_file, files))) for files in scripts))


def policy(scripts: str, styles: str = "'unsafe-inline'") -> str:
    """Return a Content-Security-Policy: these scripts and styles, images in the page itself, and requests to the server alone."""
    return (
        f"default-src 'none'; script-src {scripts}; style-src {styles}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def hash_of(script: str) -> str:
    """Return the source expression for an inline script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


@functools.cache
def _templates() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined
    from markupsafe import Markup

    templates = Environment(
        autoescape=True,
        finalize=_printable,
        loader=FunctionLoader(page_file),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.globals["page_file"] = lambda file: Markup(page_file(file))  # only bertkit's own files are not escaped
    templates.filters |= {"metric_name": metric_name, "format_score": format_score, "shown": shown}
    return templates


def _printable(value: object) -> object:
    """Escape the control characters of a text, except for line feeds."""
    return "\n".join(map(shown, value.split("\n"))) if type(value) is str else value


def format_score(value: float) -> str:
    """Format a score: integers in full, other numbers with four digits."""
    if isinstance(value, int) or value == 0:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}" if abs(value) >= 1 else f"{value:.4f}"


def metric_name(metric: str) -> str:
    """Return the name of a metric for readers, such as "held-out MLM loss"."""
    name = metric.removeprefix("eval_")
    words = METRIC_NAMES.get(name) or " ".join(METRIC_WORDS.get(word, word) for word in name.split("_"))
    return words if name == metric else f"held-out {words}"
