"""All exports load in old and new releases of transformers, with nothing missing, nothing left over, nothing said.

Each release is installed without its dependencies into a folder of its own, below BERTKIT_TRANSFORMERS_DIR if that is set.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import installed_apart, small_model

from bertkit import export_model, load_model, load_tokenizer
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.interop.hugging_face.config_json import ARCHITECTURES
from bertkit.model.bert_config import POOLED_HEADS

# transformers -> the huggingface_hub and tokenizers of its time; the last one is the installed release
VERSIONS = {
    "4.30.2": ("0.16.4", "0.13.3"),
    "4.36.2": ("0.23.5", "0.15.2"),
    "4.48.3": ("0.30.2", "0.21.4"),
    "4.57.6": ("0.36.2", "0.22.2"),
    "installed": None,
}
EXPORTS = {heads: name for heads, name in ARCHITECTURES.items() if heads != ("next_sentence",)}
TEXTS = ["kan lon. min", "Ünïcode, [MASK] and 3.50 €", "mirun 中文 ΑΣ", ""]
UPSTREAM = ("generative capabilities",)  # said of every BertForMaskedLM by 4.48, whatever its files

LOADER = """
import json, logging, sys, warnings
said = []
handler = logging.Handler(logging.WARNING)
handler.emit = lambda record: said.append(record.getMessage())
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import torch, transformers
    logging.getLogger("transformers").addHandler(handler)
    results = {}
    for name, directory in json.loads(sys.argv[1]).items():
        del said[:]
        model, info = getattr(transformers, name).from_pretrained(directory, output_loading_info=True)
        tokenizers = [transformers.AutoTokenizer.from_pretrained(directory)]
        if transformers.__version__ < "5":
            tokenizers.append(transformers.AutoTokenizer.from_pretrained(directory, use_fast=False))
        batches = [dict(t(json.loads(sys.argv[2]), padding=True, return_tensors="pt")) for t in tokenizers]
        batch = batches[0]
        if "Choice" in name:
            batch = {key: value.view(2, 2, -1) for key, value in batch.items()}
        with torch.no_grad():
            out = model.eval()(**batch)
        results[name] = {
            "version": transformers.__version__,
            "missing": sorted(info["missing_keys"]), "unexpected": sorted(info["unexpected_keys"]),
            "mismatched": sorted(map(str, info["mismatched_keys"])), "said": list(said),
            "ids": [each["input_ids"].tolist() for each in batches],
            "classes": [type(each).__name__ for each in tokenizers],
            "outputs": {key: out[key].tolist() for key in out.keys()},
        }
said = [str(w.message) for w in caught if "transformers" in w.filename and "pytree" not in str(w.message)]
print(json.dumps({"results": results, "warnings": said}))
"""


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("exports")
    found = {}
    for heads, name in EXPORTS.items():
        pooler = bool(set(heads) & set(POOLED_HEADS)) or not heads
        model = small_model(tokenizer.vocab_size, heads=heads, with_pooler=pooler, labels=("no", "maybe", "yes"))
        found[name] = export_model(model, tokenizer, folder / name)
    assert len(found) == 7
    return found


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
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    listed = json.dumps({name: str(directory) for name, directory in exports.items()})
    done = subprocess.run(
        [sys.executable, "-c", LOADER, listed, json.dumps(TEXTS)],
        env=environment, capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    there: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert there["warnings"] == []
    assert set(there["results"]) == set(exports)
    worst = 0.0
    for name, result in there["results"].items():
        assert version in ("installed", result["version"])
        assert (result["missing"], result["unexpected"], result["mismatched"]) == ([], [], []), name
        assert [line for line in result["said"] if not any(known in line for known in UPSTREAM)] == [], name
        batch = load_tokenizer(exports[name])(TEXTS, padding=True, return_tensors="pt")
        assert len(result["ids"]) == (2 if path else 1)
        assert all(ids == batch["input_ids"].tolist() for ids in result["ids"]), name
        if path:
            assert result["classes"] == ["BertTokenizerFast", "BertTokenizer"]
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
