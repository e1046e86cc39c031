"""All exports, of BERT and of each class of its family, load in old and new releases of transformers, with nothing missing, nothing left over and no warning.

Each release is installed without its dependencies into a folder of its own, below BERTKIT_TRANSFORMERS_DIR if that is set.
"""

import os
from pathlib import Path

import pytest
import torch
from conftest import installed_apart, small_model
from interop.elsewhere import loaded_elsewhere
from interop.hugging_face.test_family import CASES, CONFIGS, architecture, saved, shape
from safetensors.torch import save_file

from bertkit import export_model, load_model, load_tokenizer
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.interop.hugging_face.bert import BertArchitecture
from bertkit.interop.hugging_face.config_json import config_json
from bertkit.interop.hugging_face.directory import tensors_of
from bertkit.interop.load import load_directory
from bertkit.model.head.head import any_pooled, head_of

# transformers -> the huggingface_hub and tokenizers of its time; the last one is the installed release
VERSIONS = {
    "4.30.2": ("0.16.4", "0.13.3"),
    "4.36.2": ("0.23.5", "0.15.2"),
    "4.48.3": ("0.30.2", "0.21.4"),
    "4.57.6": ("0.36.2", "0.22.2"),
    "installed": None,
}
EXPORTS = {
    h: name
    for h, name in BertArchitecture.classes.items()
    if h not in {("next_sentence",), ("next_token",), ("generation",)}
}
TEXTS = ["kan lon. min", "Ünïcode, [MASK] and 3.50 €", "mirun 中文 ΑΣ", ""]
UPSTREAM = ("generative capabilities",)  # 4.48 warns so for every BertForMaskedLM


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("exports")
    results = {}
    for heads, name in EXPORTS.items():
        pooler = any_pooled(heads) or not heads
        model = small_model(tokenizer.vocab_size, heads=heads, with_pooler=pooler, labels=("no", "maybe", "yes"))
        results[name] = export_model(model, tokenizer, folder / name)
    assert len(results) == 7
    return results


def installed(version: str, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The folder of a release, made if need be; an empty list for the release that is installed."""
    pins = VERSIONS[version]
    if pins is None:
        return []
    parent = Path(os.environ.get("BERTKIT_TRANSFORMERS_DIR") or tmp_path_factory.getbasetemp() / "transformers")
    wanted = [f"transformers=={version}", f"huggingface_hub=={pins[0]}", f"tokenizers=={pins[1]}"]
    return [installed_apart(parent / version, wanted)]


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_every_export_loads(
    version: str, exports: dict[str, Path], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = installed(version, tmp_path_factory)
    variables = {"PYTHONPATH": os.pathsep.join(path), "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    loaded = loaded_elsewhere(list(exports.items()), TEXTS, tmp_path, **variables)
    worst = 0.0
    for name, result in zip(exports, loaded, strict=True):
        assert version in ("installed", result["version"])
        assert (result["missing"], result["unexpected"], result["mismatched"]) == ([], [], []), name
        assert [line for line in result["messages"] if not any(known in line for known in UPSTREAM)] == [], name
        batch = load_tokenizer(exports[name])(TEXTS, padding=True, return_tensors="pt")
        assert len(result["ids"]) == (2 if path else 1)
        assert all(ids == batch["input_ids"].tolist() for ids in result["ids"]), name
        if path:
            assert result["tokenizers"] == ["BertTokenizerFast", "BertTokenizer"]
        if name == "BertForMultipleChoice":
            batch = {key: value.view(2, 2, -1) for key, value in batch.items()}
        out = load_model(exports[name])(**batch)
        is_token = batch["attention_mask"].bool()
        ours = {**out.logits, "last_hidden_state": out.last_hidden_state}
        theirs = {key: torch.tensor(value) for key, value in result["outputs"].items()}
        if name == "BertForQuestionAnswering":
            theirs = {"span": torch.stack([theirs["start_logits"], theirs["end_logits"]], -1)}
        names = {"prediction_logits": "masked_lm", "seq_relationship_logits": "next_sentence"}
        compared = 0
        for key, value in theirs.items():
            head = names.get(key) or (next(iter(out.logits)) if key == "logits" else key)
            if head in ours:
                mine = ours[head]
                per_token = mine.shape[: is_token.dim()] == is_token.shape and head != "choice"
                pair = (mine[is_token], value[is_token]) if per_token else (mine, value)
                worst = max(worst, float((pair[0] - pair[1]).detach().abs().max()))
                compared += 1
        assert compared == (2 if name == "BertForPreTraining" else 1), name
    assert worst < 1e-5
    print(f"transformers {result['version']}: 7 exports, largest difference {worst:.1e}")


# the first release of those above with the type
FIRST = dict.fromkeys(("eurobert", "gte", "nomic_bert", "jina_embeddings_v3"), "installed")
# 4.48 sets the bias of these language model heads to zero after it has loaded it
_ROBERTAS = ("roberta", "xlm-roberta", "camembert")
WITHOUT_BIAS = {("4.48.3", kind, (head,)) for kind in _ROBERTAS for head in ("masked_lm", "next_token")}
WITHOUT_BIAS |= {("4.48.3", "albert", ("masked_lm",))}
BATCH = {
    "input_ids": [[5, 6, 7, 8, 9], [10, 9, 8, 5, 5], [6, 6, 5, 5, 5], [7, 8, 9, 5, 5]],
    "attention_mask": [[1] * 5, [1] * 3 + [0] * 2] * 2,
}


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, tuple[str, ...], Path]]:
    """For each class of each type, the type, the heads and an export of bertkit; the tokenizers are files of others, which it copies."""
    folder, results = tmp_path_factory.mktemp("family"), {}
    for number, (kind, heads) in enumerate(CASES):
        name = architecture(kind).classes[heads]
        # 4.30 has no masked LM of DeBERTa with embeddings of another size
        more = {"embedding_size": shape(kind, number)["hidden_size"]} if kind in ("deberta", "deberta-v2") else {}
        saved(folder / f"{name}-theirs", kind, heads, number, **more)
        model, _ = load_directory(folder / f"{name}-theirs")
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(config_json(model))
        tensors = {key: tensor.contiguous() for key, tensor in tensors_of(model).items()}
        save_file(tensors, folder / name / "model.safetensors", {"format": "pt"})
        results[name] = kind, heads, folder / name
    assert {kind for kind, _, _ in results.values()} == {*CONFIGS}
    return results


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_every_class_of_the_family_loads(
    version: str,
    family: dict[str, tuple[str, tuple[str, ...], Path]],
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """With the same outputs."""
    path = installed(version, tmp_path_factory)
    variables = {"PYTHONPATH": os.pathsep.join(path), "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    cases = [(name, folder) for name, (_, _, folder) in family.items()]
    loaded = dict(zip(family, loaded_elsewhere(cases, BATCH, tmp_path, **variables), strict=True))
    numbers, worst = [*VERSIONS], 0.0
    for name, (kind, heads, folder) in family.items():
        result, batch = loaded[name], {key: torch.tensor(value) for key, value in BATCH.items()}
        assert bool(result) == (numbers.index(version) >= numbers.index(FIRST.get(kind, numbers[0]))), name
        if not result:
            continue
        missing = [
            key for key in result["missing"] if not key.endswith("embeddings.position_ids")
        ]  # no weight; in 4.30
        assert (missing, result["unexpected"], result["mismatched"]) == ([], [], []), name
        known = (*UPSTREAM, *result["missing"])
        assert [line for line in result["messages"] if not any(word in line for word in known)] == [], name
        is_token = batch["attention_mask"].bool()
        if heads == ("choice",):
            batch = {key: value.view(2, 2, -1) for key, value in batch.items()}
        out, theirs = (
            load_model(folder)(**batch),
            {key: torch.tensor(value) for key, value in result["outputs"].items()},
        )
        if not heads:
            mine, other = out.last_hidden_state, theirs["last_hidden_state"]
        elif len(heads) == 1:
            mine, other = out.logits[heads[0]], head_of(heads[0]).their_logits(theirs)
        else:
            mine, other = out.logits["masked_lm"], theirs["prediction_logits"]
        by_token = not heads or not head_of(heads[0]).is_pooled
        difference = (mine - other)[is_token if by_token else ...].detach().abs().max() / other.abs().max()
        if (version, kind, heads[:1]) in WITHOUT_BIAS:
            assert difference > 1e-5, name
            continue
        assert difference < 1e-5, name
        worst = max(worst, float(difference))
    print(f"transformers {version}: {sum(map(bool, loaded.values()))} classes, largest difference {worst:.1e}")
