"""Settings that had other names in earlier versions, in one table: saved runs and command lines may still use them."""

import copy
from collections.abc import Callable, Mapping

from bertkit.base.text_files import JsonObject, JsonValue
from bertkit.base.typed_settings import at

# the old key -> from its value the settings of today; later rows win
RENAMED: dict[str, Callable[[JsonValue], JsonObject]] = {
    # 0.2
    "masking.whole_word": lambda is_set: {"masking.kind": "whole_word" if is_set else "bert"},
    "masking.max_ngram": lambda n: {} if n == 1 else {"masking.kind": "ngram", "masking.options.max_ngram": n},
}


def current(saved: Mapping[str, JsonValue]) -> JsonObject:
    """Return saved settings, or the identity of a run, with the names of today; a new name that is there already keeps its value."""
    settings, renamed = copy.deepcopy(dict(saved)), JsonObject()
    for old, new in RENAMED.items():
        group, _, leaf = old.rpartition(".")
        holder = at(settings, group)
        if isinstance(holder, dict) and leaf in holder:
            renamed |= new(holder.pop(leaf))
    for key, value in renamed.items():
        *groups, leaf = key.split(".")
        holder = settings
        for group in groups:
            holder = holder.setdefault(group, {})
        holder.setdefault(leaf, value)
    return settings
