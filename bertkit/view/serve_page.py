"""The page of `bertkit serve`: a form that fits each model, its answers as bars and marks, and how to ask from a program.

It is one text with its style and script inside, and asks no host but the one that it came from.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from bertkit.view.packing import script_of
from bertkit.view.page import part_of_page


def page(models: Sequence[Mapping[str, Any]], has_search: bool) -> str:
    """Write the page.

    Args:
        models: as `GET /models` gives them: name, kind, labels, columns, needs_pair, examples of each.
        has_search: whether there are passages to search.
    """
    about = json.dumps({"models": [*map(dict, models)], "has_search": has_search}).replace("<", "\\u003c")
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>bertkit</title><link rel="icon" href="data:,"><style>{part_of_page("page.css")}{part_of_page("serve_page.css")}</style>
{part_of_page("serve_page.html")}
<script type="application/json" id="served">{about}</script>
<script>{part_of_page("serve_page.js")}</script>
</html>
"""


@functools.cache
def policy() -> str:
    """Give the Content-Security-Policy that the page is to be sent with.

    It has the page run its own script and no other, and ask nobody but the server. The scripts of the attention page
    are allowed too: a frame without an address of its own lives under the policy of the page around it.
    """
    hashes = []
    for script in (part_of_page("serve_page.js"), script_of("attention"), script_of("alignment")):
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        hashes.append(f"'sha256-{digest}'")
    return (
        f"default-src 'none'; script-src {' '.join(hashes)}; style-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
