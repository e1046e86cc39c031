"""YAML that anybody may have written, such as settings of a directory that was passed on: read so that it has an end."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from bertkit.config import conf_dirs, dotted_keys
from bertkit.errors import InputError
from bertkit.lines import MAX_DEPTH, TOO_DEEP

MAX_NODES = 1_000_000  # of a file with its aliases written out


def check_files(config_dir: str | None) -> None:
    """Read the files of the user's directory once before Hydra does: what it makes of hostile ones has no end."""
    for directory in conf_dirs(config_dir)[1:]:
        for path in sorted([*directory.glob("*.yaml"), *directory.glob("*/*.yaml")]):
            try:
                content = parse_yaml(path.read_text(encoding="utf-8"))
            except ValueError as error:
                raise InputError(f"{path}: not YAML ({error}); correct it") from None
            if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
                found = "nothing" if content is None else f"{content!r:.40}"
                raise InputError(f"{path}: expected settings, a line 'key: value' each, found {found}; correct it")


def keys_of_experiment(directories: list[Path], name: str) -> list[str]:
    """The groups that an experiment overrides, and the keys that it sets."""
    path = next(path for directory in directories if (path := directory / "experiment" / f"{name}.yaml").is_file())
    content = parse_yaml(path.read_text(encoding="utf-8")) or {}
    defaults = [entry for entry in content.pop("defaults", []) if isinstance(entry, dict)]
    groups = [key.removeprefix("override").strip(" /") for entry in defaults for key in entry]
    keys = dotted_keys(content)
    return [*groups, *(key for key in keys if not any(other.startswith(f"{key}.") for other in keys))]


def parse_yaml(text: str) -> Any:
    """Read plain values, whose aliases neither contain themselves nor grow without end.

    Raises:
        ValueError: it is not such YAML.
    """
    import yaml

    try:
        return yaml.load(text, _yaml_loader())  # a SafeLoader
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())) from None


@functools.cache
def _yaml_loader() -> Any:
    """A SafeLoader that measures what it reads before it makes anything of it."""
    import yaml

    class Loader(yaml.SafeLoader):
        def __init__(self, stream: Any) -> None:
            super().__init__(stream)
            self.depth = 0
            self.measured: dict[int, tuple[int, int]] = {}  # a node -> nodes in it and depth, aliases written out

        def compose_node(self, parent: Any, index: Any) -> Any:
            is_alias = self.check_event(yaml.AliasEvent)
            self.depth += 1
            if self.depth > MAX_DEPTH:
                raise ValueError(TOO_DEEP)
            node = super().compose_node(parent, index)
            self.depth -= 1
            if is_alias and id(node) not in self.measured:
                raise ValueError("an alias that contains itself")
            if not is_alias:
                inside = node.value if isinstance(node, yaml.CollectionNode) else []
                parts = [each for one in inside for each in (one if isinstance(one, tuple) else (one,))]
                sizes = [self.measured[id(part)] for part in parts]
                size, depth = 1 + sum(size for size, _ in sizes), 1 + max((depth for _, depth in sizes), default=0)
                if size > MAX_NODES or depth > MAX_DEPTH:
                    raise ValueError(f"aliases that stand for more than {MAX_NODES:,} values, or {MAX_DEPTH} deep")
                self.measured[id(node)] = size, depth
            return node

    return Loader
