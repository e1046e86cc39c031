"""The model card: metadata that parses, whatever the values hold."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from conftest import small_config, small_model

from bertkit.cli import compose
from bertkit.interop.card import model_card, pretraining_card
from bertkit.model.heads import BertWithHeads

ODD = ["no", "a: b", "--- # !x", '"quoted"', "a | b", "[1, {", "é\u2028ü", "first\nsecond", "C:\\path", "&x *y %z @w"]


def metadata(card: str) -> dict[str, Any]:
    start, head, body = card.split("---\n", 2)
    assert start == ""
    assert body.startswith("\n# ")
    return yaml.safe_load(head)


@pytest.mark.parametrize(
    ("heads", "pooler", "pipeline", "auto"),
    [
        (("masked_lm", "next_sentence"), True, "fill-mask", "AutoModelForPreTraining"),
        (("masked_lm",), False, "fill-mask", "AutoModelForMaskedLM"),
        ((), True, "feature-extraction", "AutoModel"),
    ],
)
def test_metadata_and_snippet(heads: tuple[str, ...], pooler: bool, pipeline: str, auto: str) -> None:
    card = model_card(BertWithHeads(small_config(), heads, pooler), "A title", {}, {}, "apache-2.0", "en")
    assert metadata(card) == {
        "library_name": "transformers",
        "pipeline_tag": pipeline,
        "tags": ["bert", "bertkit"],
        "license": "apache-2.0",
        "language": "en",
    }
    assert f"from transformers import AutoTokenizer, {auto}\n" in card
    assert f"model = {auto}.from_pretrained(" in card
    assert "## " not in card


def test_what_is_not_known_is_left_out() -> None:
    assert set(metadata(model_card(small_model(), "t", {}, {}))) == {"library_name", "pipeline_tag", "tags"}


@pytest.mark.parametrize("odd", ODD)
def test_odd_characters(odd: str) -> None:
    """In the metadata they come back as they were; in the table they stay in their cell."""
    card = model_card(small_model(), "t", {"text": odd, "nested": {"a": odd}}, {"loss": 1.23456789}, odd, odd)
    found = metadata(card)
    assert (found["license"], found["language"]) == (odd, odd)
    rows = [line for line in card.split("\n") if line.startswith("| ")]
    assert len(rows) == 2 + 3
    for row in rows:
        assert row.replace("\\|", "").count("|") == 3
        assert row.endswith(" |")
    assert "| loss | 1.23457 |" in rows


def test_the_card_of_a_run_holds_its_settings() -> None:
    settings = compose("pretrain", ["data_dir=x", "output_dir=x", "steps=77", "seed=5"])
    card = pretraining_card(small_model(), settings, "three | books", {"mlm_loss": 2.5, "perplexity": None})
    assert "| text | three \\| books |" in card
    for line in ("| steps | 77 |", "| seed | 5 |", "| mlm_loss | 2.5 |"):
        assert line in card
    assert "peak_learning_rate 0.0001" in card
    assert metadata(card)["pipeline_tag"] == "fill-mask"
