"""The page of `bertkit serve`: a form that fits each model, its answers as bars and marks, and how to ask from a program.

It is one text with its style and script inside, and asks no host but the one that it came from.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from bertkit.view.page import render, source


def page(models: Sequence[Mapping[str, Any]], has_search: bool) -> str:
    """Write the page.

    Args:
        models: as `GET /models` gives them: name, kind, labels, columns, needs_pair, examples of each.
        has_search: whether there are passages to search.
    """
    return render("serve.html", name="bertkit", served={"models": models, "has_search": has_search})


@functools.cache
def policy() -> str:
    """Give the Content-Security-Policy that the page is to be sent with.

    It has the page run its own script and no other, and ask nobody but the server. The scripts of the attention page
    are allowed too: a frame without an address of its own lives under the policy of the page around it.
    """
    scripts = ["serve.js"], ["packing.js", "attention.js"], ["packing.js", "alignment.js"]
    digests = (hashlib.sha256("".join(map(source, files)).encode()).digest() for files in scripts)
    hashes = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
