"""The model card: metadata that parses, whatever the values hold."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import small_config, small_model
from huggingface_hub import ModelCard

from bertkit.interop.exports.card import CardFacts, finetuning_facts, model_card, pretraining_facts
from bertkit.model.heads import BertWithHeads
from bertkit.settings.reading.compose import compose


def metadata(card: str) -> dict[str, Any]:
    start, head, body = card.split("---\n", 2)
    assert start == ""
    assert body.startswith("\n# ")
    return yaml.safe_load(head)


@pytest.mark.parametrize(("heads", "pooler", "pipeline", "auto"), [
    (("masked_lm", "next_sentence"), True, "fill-mask", "AutoModelForPreTraining"),
    (("masked_lm",), False, "fill-mask", "AutoModelForMaskedLM"),
    ((), True, "feature-extraction", "AutoModel"),
    (("sequence",), True, "text-classification", "AutoModelForSequenceClassification"),
    (("token",), False, "token-classification", "AutoModelForTokenClassification"),
    (("span",), False, "question-answering", "AutoModelForQuestionAnswering"),
    (("choice",), True, "multiple-choice", "AutoModelForMultipleChoice"),
    (("next_sentence",), True, "text-classification", "AutoModelForNextSentencePrediction"),
])  # fmt: skip
def test_card_has_metadata_and_snippet(heads: tuple[str, ...], pooler: bool, pipeline: str, auto: str) -> None:
    facts = CardFacts("A title", license="apache-2.0", language="en", base_model="some/base")
    card = model_card(BertWithHeads(small_config(), heads, pooler), facts)
    assert metadata(card) == {
        "library_name": "transformers",
        "pipeline_tag": pipeline,
        "tags": ["bert", "bertkit"],
        "license": "apache-2.0",
        "language": "en",
        "base_model": "some/base",
    }
    assert f"from transformers import AutoTokenizer, {auto}\n" in card
    assert f"model = {auto}.from_pretrained(" in card
    assert "## " not in card


def test_card_omits_unknown_facts() -> None:
    assert set(metadata(model_card(small_model(), CardFacts("t")))) == {"library_name", "pipeline_tag", "tags"}


def test_the_card_of_a_run_holds_its_settings() -> None:
    settings = compose("pretrain", ["data_dir=x", "output_dir=x", "model=base", "steps=77", "seed=5"])
    results = {"mlm_loss": 2.5, "mlm_accuracy": 0.25, "steps": 77, "perplexity": None}
    card = model_card(small_model(), pretraining_facts(settings, "three | books", results, "org/base"))
    assert "| text | three \\| books |" in card
    for line in ("| steps | 77 |", "| seed | 5 |", "| mlm_loss | 2.5 |"):
        assert line in card
    assert "peak_learning_rate 0.0001" in card
    assert metadata(card)["pipeline_tag"] == "fill-mask"
    assert metadata(card)["base_model"] == "org/base"
    local = model_card(small_model(), pretraining_facts(settings, "x", results, "/home/me/bert"))
    assert "base_model" not in metadata(local)
    assert "| started from | another model's weights |" in local
    assert "/home" not in local


def test_an_encoder_without_pooler_says_how_to_load_it() -> None:
    card = model_card(small_model(heads=(), with_pooler=False), CardFacts("t", results={"mlm_loss": 1.5}))
    assert 'AutoModel.from_pretrained("DIRECTORY", add_pooling_layer=False)' in card
    assert "model-index" not in metadata(card)


def test_a_fine_tuned_model_names_its_scores_data_and_start(tmp_path: Path) -> None:
    places = ["model_dir=some/bert", "data_dir=x", "output_dir=x"]
    settings = compose("finetune", ["task=mrpc", *places])
    results = {"accuracy": 0.8, "f1": 0.875, "best_epoch": 2.0, "num_examples": 408}
    facts = finetuning_facts(settings, results, ["accuracy", "f1"])
    (tmp_path / "README.md").write_text(model_card(small_model(heads=("sequence",)), facts))
    data = ModelCard.load(tmp_path / "README.md").data
    actual = [(r.dataset_type, r.dataset_config, r.metric_type, r.metric_value) for r in data.eval_results]
    assert sorted(actual) == [("nyu-mll/glue", "mrpc", "accuracy", 0.8), ("nyu-mll/glue", "mrpc", "f1", 0.875)]
    assert (data.datasets, data.base_model) == (["nyu-mll/glue"], "some/bert")
    assert {result.dataset_name for result in data.eval_results} == {"the dev split of mrpc"}
    own = finetuning_facts(compose("finetune", ["task=classification", *places]), results, ["accuracy"])
    assert own.measured_on == "the dev split"
