"""A page by itself, which needs no network and no other file, and what it is made of."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1c2128; background: #fff; max-width: 1080px; margin: 2em auto; padding: 0 1em }
h1 { font-size: 1.4em; margin-bottom: .2em } h2 { font-size: 1.1em; margin-top: 2em }
.charts { display: flex; flex-wrap: wrap; gap: 18px } figure { margin: 0 } figcaption { font-weight: 600 }
.legend span { margin-right: 1.2em; font-size: .85em } svg text { font: 11px system-ui, sans-serif; fill: #57606a }
table { border-collapse: collapse } td, th { text-align: left; padding: .15em 1.2em .15em 0; border-bottom: 1px solid #eaeef2 }
pre { background: #f6f8fa; padding: 1em; overflow: auto; font-size: .85em }
"""


@dataclass(frozen=True)
class Table:
    """Rows of text, for a terminal or for a page."""

    title: str  # on a page; "" for none
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """Write it for a terminal."""
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        head, rule, *rows = ("| " + " | ".join(line) + " |" for line in lines)
        return "\n".join([head.replace("|  |", "| |"), rule.replace(" ", ""), *rows])

    def html(self) -> str:
        """Write it for a page."""
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.columns)
        rows = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in self.rows]
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        title = f"<h2>{html.escape(self.title)}</h2>" if self.title else ""
        return f"{title}<table><tr>{head}</tr>{body}</table>"


def facts_table(facts: Mapping[str, Any]) -> str:
    """Write names and values, one a row."""
    cells = [
        f"<tr><th>{html.escape(str(key))}</th><td>{html.escape(f'{value:.6g}' if isinstance(value, float) else str(value))}</td></tr>"
        for key, value in facts.items()
    ]
    return f"<table>{''.join(cells)}</table>"


def page(name: str, headline: str, body: str, settings: str) -> str:
    """Put a page together: its name, a sentence, a body of HTML, and the settings as they are."""
    name = html.escape(name)
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{name}</title><style>{STYLE}</style>
<h1>{name}</h1><p>{html.escape(headline)}</p>
{body}
<h2>Settings</h2><pre>{html.escape(settings)}</pre>
</html>
"""
