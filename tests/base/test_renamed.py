"""Settings that had other names in earlier versions."""

from typing import Any

import pytest

from bertkit.base.renamed import current
from bertkit.settings.reading.overrides import read_words
from bertkit.settings.reading.values import read_values


@pytest.mark.parametrize(("old", "new"), [
    ({"whole_word": False, "max_ngram": 1}, {"kind": "bert"}),
    ({"whole_word": False}, {"kind": "bert"}),  # before there were n-grams
    ({"whole_word": True, "max_ngram": 1}, {"kind": "whole_word"}),
    ({"whole_word": True, "max_ngram": 5}, {"kind": "ngram", "options": {"max_ngram": 5}}),
    ({"whole_word": False, "max_ngram": 1, "kind": "block", "options": {"length": 4}}, {"kind": "block", "options": {"length": 4}}),
])  # fmt: skip
def test_old_masking_settings_become_current_ones(old: dict[str, Any], new: dict[str, Any]) -> None:
    saved = {"seed": 3, "masking": {"probability": 0.2, **old}}
    assert current(saved) == {"seed": 3, "masking": {"probability": 0.2, **new}}
    assert current(current(saved)) == current(saved)
    assert saved["masking"] == {"probability": 0.2, **old}


@pytest.mark.parametrize("masking", [None, "none", 3])
def test_settings_without_masking_are_unchanged(masking: object) -> None:
    assert current({"masking": masking}) == {"masking": masking}
    assert current({}) == {}


def test_old_names_are_accepted_from_command_line_and_python() -> None:
    words = ["masking.whole_word=true", "masking.max_ngram=4", "seed=3"]
    expected = {"masking": "ngram", "masking.options.max_ngram": 4, "seed": 3}
    assert {one.key: one.value for one in read_words("pretrain", words)} == expected
    values = {"masking": {"whole_word": True, "max_ngram": 4}, "seed": 3}
    assert {one.key: one.value for one in read_values("pretrain", values)} == expected
    assert [one.text for one in read_words("prepare", ["masking.whole_word=false"])] == ["masking=bert"]
