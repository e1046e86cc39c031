"""YAML that anybody may have written, such as the settings of a run that was passed on."""

from __future__ import annotations

from typing import Any

import yaml

from bertkit.lines import MAX_DEPTH, TOO_DEEP


def parse_yaml(text: str) -> Any:
    """Read YAML that anybody may have written: plain values, and no aliases, which could stand for values without end.

    Raises:
        ValueError: it is not such YAML.
    """
    loader, depth = getattr(yaml, "CSafeLoader", yaml.SafeLoader), 0
    try:
        for event in yaml.parse(text, loader):
            if isinstance(event, yaml.AliasEvent):
                raise ValueError("an alias; write out what it stands for")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise ValueError(TOO_DEEP)
        return yaml.load(text, loader)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None
