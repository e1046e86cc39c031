"""A page by itself, which needs no network and no other file, and what it is made of."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.errors import shown


def part_of_page(file: str) -> str:
    """Give a style, a script or a piece of HTML that lies beside this file."""
    return Path(__file__).with_name(file).read_text(encoding="utf-8")


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

    def html(self, is_of_texts: bool = False) -> str:
        """Write it for a page; with `is_of_texts` a narrow page shows a row's cells one below the other."""
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.columns)
        rows = [
            "".join(
                f'<td data-name="{html.escape(name)}">{html.escape(cell)}</td>'
                if is_of_texts
                else f"<td>{html.escape(cell)}</td>"
                for name, cell in zip(self.columns, row, strict=True)
            )
            for row in self.rows
        ]
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        title = f"<h2>{html.escape(self.title)}</h2>" if self.title else ""
        if is_of_texts:
            return f'{title}<table class="cards"><tr>{head}</tr>{body}</table>'
        table = f"<table><tr>{head}</tr>{body}</table>"
        return title + (f'<div class="wide">{table}</div>' if len(self.columns) > 2 else table)


def facts_table(facts: Mapping[str, Any]) -> str:
    """Write names and values, one a row."""
    cells = [
        f"<tr><th>{html.escape(str(key))}</th><td>{html.escape(f'{value:.6g}' if isinstance(value, float) else str(value))}</td></tr>"
        for key, value in facts.items()
    ]
    return f'<table class="facts">{"".join(cells)}</table>'


def page(name: str, headline: str, body: str, settings: str = "") -> str:
    """Put a page together: its name, a sentence, a body of HTML, and the settings as they are, if there are any."""
    shown = f"<details><summary>all of them</summary><pre>{html.escape(settings)}</pre></details>"
    below = f"<h2>Settings</h2>{shown}" if settings else ""
    name = html.escape(name)
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{name}</title><style>{part_of_page("page.css")}</style>
<h1>{name}</h1><p>{html.escape(headline)}</p>
{body}
{below}
</html>
"""
