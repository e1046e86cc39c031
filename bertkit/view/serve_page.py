"""The page of `bertkit serve`: a form that fits each model, its answers as bars and marks, and how to ask from a program.

It is one text with its style and script inside, and asks no host but the one that it came from.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertkit.view.packing import script_of
from bertkit.view.page import STYLE as STYLE_OF_PAGES

STYLE = """
body { max-width: 860px } h1 { margin-top: .6em } h3 { font-size: 1em; margin: 0 0 .3em }
.soft { color: var(--soft) } .large { font-size: 1.5em; line-height: 1.3; margin: .2em 0 .6em; overflow-wrap: anywhere }
#failed { color: var(--bad); margin: .6em 0 0 } #failed:empty, #about :empty, #about:has(:empty), #examples:empty { display: none } [hidden] { display: none !important }
input, textarea, select, button { font: inherit; color: inherit; background: var(--panel); border: 1px solid var(--rule); border-radius: 6px }
textarea, input[type=text] { display: block; width: 100%; padding: .5em .7em; resize: vertical; field-sizing: content; min-height: calc(var(--rows, 1) * 1lh + 1em + 2px); max-height: 24em; background: var(--paper); border-color: var(--line) }
:root { --line: #8c959f } @media (prefers-color-scheme: dark) { :root { --line: #6e7681 } }
select { padding: .3em .5em; max-width: 100% } button { padding: .35em .9em; cursor: pointer; overflow-wrap: anywhere; max-width: 100% }
#go { background: var(--c0); border-color: var(--c0); color: var(--paper); font-weight: 600 }
#fields > div { margin: .8em 0 } #fields label { display: block; font-weight: 600; margin-bottom: .2em }
fieldset { border: 0; padding: 0; margin: 0; min-width: 0 } .top { display: flex; flex-wrap: wrap; gap: .8em 1.6em; align-items: end }
legend, .top > label, #tops { padding: 0; color: var(--soft); font-size: .85em } #choose select, #top { display: block; font-size: 15px; color: var(--ink) }
.seg label { display: inline-block } .seg span { display: block; padding: .3em .9em; border: 1px solid var(--rule); margin-left: -1px; background: var(--panel) }
.seg label:first-of-type span { border-radius: 6px 0 0 6px } .seg label:last-of-type span { border-radius: 0 6px 6px 0 }
.seg input { position: absolute; opacity: 0; width: 0; height: 0 } .seg input:checked + span { background: var(--ink); color: var(--paper); border-color: var(--ink) }
:focus-visible, .seg input:focus-visible + span { outline: 2px solid var(--c2); outline-offset: 2px; position: relative }
.chip { font-size: .9em; padding: .15em .7em; margin: 0 .4em .4em 0; border-radius: 1em; text-align: start } .actions { margin: 1em 0 0 } .actions button { margin-right: .4em }
.unseen { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap }
#status { color: var(--soft); overflow-wrap: anywhere } section { margin-top: 1.4em } section:empty { display: none } #found[aria-busy] { opacity: .5 }
.bars { width: 100%; max-width: 620px; table-layout: fixed } .bars th, .bars td { padding: .2em .8em .2em 0; border: 0; vertical-align: middle; font-weight: 400; overflow-wrap: anywhere }
.bars th { width: 40% } .bars .number { width: 5em; text-align: right; font-variant-numeric: tabular-nums; padding: 0 } .bars .best { font-weight: 600 }
.bar { display: block; height: .6em; border-radius: 3px; background: linear-gradient(var(--c0), var(--c0)) no-repeat left / calc(var(--a, 0) * 100%) var(--panel); box-shadow: inset 0 0 0 1px var(--rule) }
.plain { background: none; border: 0; padding: 0; border-radius: 2px; text-align: start; font-weight: inherit; text-decoration: underline; text-decoration-color: var(--rule); text-underline-offset: 3px }
.plain[aria-pressed=true] { text-decoration-color: var(--c0); text-decoration-thickness: 2px }
.running { white-space: pre-wrap; overflow-wrap: anywhere; max-height: 26em; overflow: auto; line-height: 1.75; padding: .5em .7em; margin: 0 0 1em; border: 1px solid var(--rule); border-radius: 6px; position: relative }
mark { unicode-bidi: isolate; box-decoration-break: clone; -webkit-box-decoration-break: clone; color: inherit; background: color-mix(in srgb, var(--hue, var(--c0)) 22%, transparent); border-bottom: 2px solid var(--hue, var(--c0)); border-radius: 3px 3px 0 0; padding: 1px 2px }
.unsure { background: none; border-bottom-style: dotted } .entity small { margin-left: .4em; font-size: .72em; font-weight: 600; color: var(--hue); letter-spacing: .03em }
.masks { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 260px), 1fr)); gap: 1em 2em }
.others { overflow-wrap: anywhere }
.hits { padding-left: 1.6em } .hits li { margin-bottom: 1.6em } .hits .running { margin-bottom: .4em; max-height: 14em } .scores, .source { margin: .2em 0; font-size: .85em; overflow-wrap: anywhere }
.score { display: inline-block; width: 9.5em; margin-right: 1.4em } .score b { color: var(--ink); font-variant-numeric: tabular-nums } .score .bar { height: .35em }
#attention h2 { display: inline-block; margin: 0 1em .6em 0 } #attention a { margin-right: 1em }
@media (min-width: 1200px) { #attention { width: 1120px; margin-left: -146px } }
iframe { display: block; width: 100%; height: 85vh; border: 1px solid var(--rule); border-radius: 6px; background: var(--paper) }
.code { position: relative } .code pre { margin: .3em 0 1em; white-space: pre-wrap; overflow-wrap: anywhere; max-height: 16em; border-radius: 6px } .code button, #raw button { font-size: .85em; padding: .1em .7em; margin-left: .6em; font-weight: 400 }
#raw pre { max-height: 30em; white-space: pre-wrap; overflow-wrap: anywhere } footer { margin: 3em 0 1em; border-top: 1px solid var(--rule); padding-top: .8em } a { color: var(--c0) }
"""
_BODY = """
<h1>bertkit</h1>
<p class="soft">What you type goes to this server, and to no other.</p>
<noscript><p class="warning">This page needs JavaScript; the lines of <a href="openapi.json">openapi.json</a> do without.</p></noscript>
<main>
<form id="ask" novalidate>
<div class="top"><label id="choose">Model <select id="models"></select></label>
<fieldset id="tools" class="seg"><legend>What to do</legend></fieldset></div>
<p id="about" class="soft"></p>
<div id="fields"></div>
<div class="top"><fieldset id="orders" class="seg" hidden><legend>Order by</legend></fieldset>
<label id="tops" hidden>Passages <select id="top"><option>5</option><option selected>10</option><option>20</option></select></label></div>
<p id="examples" class="soft"></p>
<p class="actions"><button id="go">Predict</button><button type="button" id="mask">Insert [MASK]</button><button type="button" id="look">Show attention</button>
<bdi id="status" role="status"></bdi></p>
<p id="failed" role="alert"></p>
</form>
<section id="found" aria-label="what the model says"></section>
<section id="attention" aria-label="attention"></section>
<h2>The same from a program</h2>
<div class="code"><h3>curl<button type="button" data-of="curl" aria-label="copy the curl line">Copy</button></h3><pre id="curl" tabindex="0"></pre></div>
<div class="code"><h3>Python<button type="button" data-of="python" aria-label="copy the Python lines">Copy</button></h3><pre id="python" tabindex="0"></pre></div>
<details id="raw" hidden><summary>The reply as JSON</summary><pre id="reply" tabindex="0"></pre></details>
</main>
<footer class="soft"><a href="openapi.json">openapi.json</a> describes all that can be asked; <a href="metrics">metrics</a> count what was.</footer>
"""


def page(models: Sequence[Mapping[str, Any]], has_search: bool) -> str:
    """Write the page.

    Args:
        models: as `GET /models` gives them: name, kind, labels, columns, needs_pair, examples of each.
        has_search: whether there are passages to search.
    """
    about = json.dumps({"models": [*map(dict, models)], "has_search": has_search}).replace("<", "\\u003c")
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>bertkit</title><link rel="icon" href="data:,"><style>{STYLE_OF_PAGES}{STYLE}</style>
{_BODY}
<script type="application/json" id="served">{about}</script>
<script>{_script()}</script>
</html>
"""


@functools.cache
def policy() -> str:
    """Give the Content-Security-Policy that the page is to be sent with.

    It has the page run its own script and no other, and ask nobody but the server. The scripts of the attention page
    are allowed too: a frame without an address of its own lives under the policy of the page around it.
    """
    hashes = []
    for script in (_script(), script_of("attention"), script_of("alignment")):
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        hashes.append(f"'sha256-{digest}'")
    return (
        f"default-src 'none'; script-src {' '.join(hashes)}; style-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _script() -> str:
    return Path(__file__).with_name("serve_page.js").read_text(encoding="utf-8")
