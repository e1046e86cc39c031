"""The page of `bertkit serve`: a form that fits each model, answers as bars and marks, and the request as a curl command.

The page is one text with its style and script, and asks no host but its own.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Mapping
from typing import Any

from bertkit.view.page import render, source


def page(served: Mapping[str, Any]) -> str:
    """Write the page for the answer of `GET /models`."""
    return render("serve.html", name="bertkit", served=served)


@functools.cache
def policy() -> str:
    """Give the Content-Security-Policy of the page: its own scripts alone, and requests to the server alone.

    The scripts of the attention page are allowed too, since a frame without an address has the policy of its page.
    """
    scripts = ["serve.js"], ["packing.js", "attention.js"], ["packing.js", "alignment.js"]
    digests = (hashlib.sha256("".join(map(source, files)).encode()).digest() for files in scripts)
    hashes = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
