"""A page by itself, which needs no network and no other file, and what it is made of."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bertkit.errors import shown

STYLE = """
:root { color-scheme: light dark; --ink: #1c2128; --paper: #fff; --soft: #57606a; --rule: #dde3ea; --panel: #f6f8fa;
  --c0: #1f6feb; --c1: #c2510a; --c2: #1a7f37; --c3: #8250df; --c4: #bf3989; --c5: #0e7c86; --bad: #b42318 }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --paper: #0d1117; --soft: #9da7b3; --rule: #2b323b;
  --panel: #161b22; --c0: #58a6ff; --c1: #f0883e; --c2: #3fb950; --c3: #bc8cff; --c4: #f778ba; --c5: #39c5cf; --bad: #ff7b72 } }
* { box-sizing: border-box }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 1120px; margin: 1.5em auto;
  padding: 0 16px; overflow-wrap: break-word }
h1 { font-size: 1.4em; margin: 0 0 .2em } h2 { font-size: 1.1em; margin: 2em 0 .5em }
.tiles { display: flex; flex-wrap: wrap; gap: 12px; margin: 1em 0 } .tiles div { background: var(--panel); padding: 10px 16px;
  border-radius: 8px; flex: 1 1 140px } .tiles b { display: block; font-size: 1.6em; line-height: 1.3 }
.tiles span { color: var(--soft); font-size: .85em }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 320px), 1fr)); gap: 22px 18px }
figure { margin: 0; min-width: 0 } .whole { grid-column: 1 / -1 } figcaption { font-weight: 600; margin-bottom: 4px }
figure svg { display: block; width: 100%; max-width: 520px; height: auto } .scroll { overflow-x: auto }
.scroll svg { width: auto; max-width: none } .legend span { display: inline-block; margin-right: 1.2em; font-size: .85em }
svg text { font: 11px system-ui, sans-serif; fill: var(--soft) }
table { border-collapse: collapse } td, th { text-align: left; vertical-align: top; padding: .2em 1.2em .2em 0;
  border-bottom: 1px solid var(--rule) } th { font-weight: 600 } .facts th { white-space: nowrap } .facts td { overflow-wrap: anywhere } .wide { overflow-x: auto } .warning { color: var(--bad) }
pre { background: var(--panel); padding: 1em; overflow: auto; font-size: .85em; overflow-wrap: normal }
@media (max-width: 700px) { .cards tr:first-child { display: none } .cards, .cards tbody, .cards tr, .cards td { display: block }
  .cards td { border: 0; padding: 0 } .cards td::before { content: attr(data-name) ": "; color: var(--soft) }
  .cards tr { border-bottom: 1px solid var(--rule); padding: .6em 0 } .facts th { white-space: normal } }
"""


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
<title>{name}</title><style>{STYLE}</style>
<h1>{name}</h1><p>{html.escape(headline)}</p>
{body}
{below}
</html>
"""
