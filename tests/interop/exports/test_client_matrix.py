"""Exports in a dozen clients, each in an environment of its own; transformers' releases are in hugging_face/test_versions.py.

An environment is a folder with the client and what it needs in other versions; the rest is this one's. The folders are kept
below BERTKIT_CLIENTS_DIR if that is set.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import installed_apart, minilm_dir, output_of, small_config

from bertkit import export_model, load_embedder, load_model, load_predictor, load_tokenizer
from bertkit.cli import run
from bertkit.model.heads import BertWithHeads
from bertkit.model.initialisation import init_weights

TEXTS = ["A river rose slowly.", "It fell again.", "Nothing of this was ever said in so many words."]
PAIRS = [("A river rose slowly.", "It fell again."), ("x", "y"), ("What rose?", "A river rose slowly.")]

_SENTENCES = """
from sentence_transformers import SentenceTransformer
found = {"embedder": SentenceTransformer(models["embedder"], device="cpu").encode(TEXTS)}
"""
_CROSS = """
from sentence_transformers import CrossEncoder
found["regression"] = CrossEncoder(models["regression"], device="cpu").predict(PAIRS)
"""
_ONNX = """
import numpy, onnxruntime
from transformers import AutoTokenizer
batch = dict(AutoTokenizer.from_pretrained(models["onnx"])([a for a, _ in PAIRS], [b for _, b in PAIRS], padding=True, return_tensors="np"))
batch = {name: value.astype(numpy.int64) for name, value in batch.items()}
session = onnxruntime.InferenceSession(models["onnx"] + "/onnx/model.onnx", providers=["CPUExecutionProvider"])
found = {"labels": session.run(None, batch)[0]}
onnxruntime.InferenceSession(models["onnx"] + "/onnx/model_quantized.onnx", providers=["CPUExecutionProvider"]).run(None, batch)
"""
_PEFT = """
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForSequenceClassification, AutoTokenizer
model = AutoModelForSequenceClassification.from_pretrained(models["labels"]).eval()
wrapped = get_peft_model(model, LoraConfig(r=2, target_modules=["query", "value"])).merge_and_unload().eval()
batch = AutoTokenizer.from_pretrained(models["labels"])([a for a, _ in PAIRS], [b for _, b in PAIRS], padding=True, return_tensors="pt")
with torch.no_grad():
    found = {"labels": wrapped(**batch).logits}
"""
_CAPTUM = """
import torch
from captum.attr import LayerIntegratedGradients
from transformers import AutoModelForSequenceClassification, AutoTokenizer
model = AutoModelForSequenceClassification.from_pretrained(models["labels"]).eval()
batch = AutoTokenizer.from_pretrained(models["labels"])([a for a, _ in PAIRS], [b for _, b in PAIRS], padding=True, return_tensors="pt")
forward = lambda ids, mask, types: model(input_ids=ids, attention_mask=mask, token_type_ids=types).logits
gradients = LayerIntegratedGradients(lambda *given: forward(*given)[:, 0], model.bert.embeddings)
ids, mask, types = batch["input_ids"], batch["attention_mask"], batch["token_type_ids"]
shares, delta = gradients.attribute(ids, torch.zeros_like(ids), additional_forward_args=(mask, types), return_convergence_delta=True, n_steps=20)
assert delta.abs().max() < 0.1, delta
found = {"labels": forward(ids, mask, types).detach()}
"""
_KEYBERT = """
from keybert import KeyBERT
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(models["embedder"], device="cpu")
assert KeyBERT(model=model).extract_keywords(TEXTS[2], top_n=2)
found = {"embedder": model.encode(TEXTS)}
"""
_CTRANSLATE2 = """
import ctranslate2, tempfile, numpy
from transformers import AutoTokenizer
with tempfile.TemporaryDirectory() as folder:
    ctranslate2.converters.TransformersConverter(models["encoder"]).convert(folder, force=True)
    encoder = ctranslate2.Encoder(folder, device="cpu")
    ids = AutoTokenizer.from_pretrained(models["encoder"])(TEXTS)["input_ids"]
    hidden = numpy.array(encoder.forward_batch(ids).last_hidden_state)
found = {"encoder": [row[: len(each)].tolist() for row, each in zip(hidden, ids)]}
"""
_TOKENIZERS = """
from tokenizers import Tokenizer
found = {"ids": [each.ids for each in Tokenizer.from_file(models["embedder"] + "/tokenizer.json").encode_batch(TEXTS)]}
"""
_LANGCHAIN = """
from langchain_huggingface import HuggingFaceEmbeddings
found = {"embedder": HuggingFaceEmbeddings(model_name=models["embedder"], model_kwargs={"device": "cpu"}).embed_documents(TEXTS)}
"""
_MODEL2VEC = """
from model2vec.distill import distill
distilled = distill(model_name=models["encoder"], device="cpu", pca_dims=None)
assert distilled.encode(TEXTS).shape == (3, 384)
found = {}
"""
_HUB = ["huggingface_hub==0.36.2", "datasets==3.6.0", "pillow"]
_OLD = ["transformers==4.48.3", *_HUB, "tokenizers==0.21.4"]
CLIENTS = {
    "sentence-transformers 3.0.1": (["sentence-transformers==3.0.1", *_OLD], _SENTENCES),
    "sentence-transformers 4.1.0": (["sentence-transformers==4.1.0", *_OLD], _SENTENCES + _CROSS),
    "sentence-transformers 5.1.2": (
        ["sentence-transformers==5.1.2", "transformers==4.57.6", *_HUB, "tokenizers==0.22.2"], _SENTENCES + _CROSS,
    ),
    "sentence-transformers, installed": ([], _SENTENCES + _CROSS),
    "onnxruntime 1.17.3": (["onnxruntime==1.17.3", "numpy==1.26.4", *_OLD, "coloredlogs", "humanfriendly"], _ONNX),
    "onnxruntime 1.20.1": (["onnxruntime==1.20.1", "coloredlogs", "humanfriendly"], _ONNX),
    "onnxruntime, installed": ([], _ONNX),
    "peft": (["peft"], _PEFT),
    "captum": (["captum", "matplotlib", "contourpy", "cycler", "kiwisolver", "pyparsing", "pillow", "python-dateutil", "six"], _CAPTUM),
    "keybert": (["keybert"], _KEYBERT),
    "ctranslate2": (["ctranslate2"], _CTRANSLATE2),
    "tokenizers 0.15.2": (["tokenizers==0.15.2"], _TOKENIZERS),
    "langchain-huggingface": (
        ["langchain-huggingface", "langchain-core", "langsmith", "jsonpatch", "jsonpointer", "tenacity", "uuid-utils",
         "langchain-protocol", "sniffio", "requests-toolbelt", "distro"],
        _LANGCHAIN,
    ),
    "model2vec": (["model2vec", "skeletoken"], _MODEL2VEC),
}  # fmt: skip
_FRAME = """
import json, sys
models, TEXTS, PAIRS = json.loads(sys.argv[1])
PAIRS = [tuple(pair) for pair in PAIRS]
{}
print(json.dumps({{name: value.tolist() if hasattr(value, "tolist") else value for name, value in found.items()}}))
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Exports of a real encoder, and of small models with its vocabulary."""
    folder, source = tmp_path_factory.mktemp("models"), minilm_dir()
    tokenizer = load_tokenizer(source)
    for name, more in (
        ("labels", {"labels": ("no", "maybe", "yes")}),
        ("regression", {"labels": ("LABEL_0",), "problem_type": "regression"}),
    ):
        model = BertWithHeads(small_config(tokenizer.vocab_size, max_position_embeddings=128, **more), ("sequence",))
        init_weights(model, 0.2, torch.Generator().manual_seed(0))
        export_model(model, tokenizer, folder / f"{name}-in")
    for name, start, *options in (
        ("embedder", source, "head=encoder", "sentence_transformers=true"),
        ("encoder", source, "head=encoder"),
        ("labels", folder / "labels-in", "head=task"),
        ("onnx", folder / "labels-in", "head=task", "onnx=int8"),
        ("regression", folder / "regression-in", "head=task"),
    ):
        assert run(["export", f"model_dir={start}", *options, f"output_dir={folder / name}"]) == 0
    return {name: folder / name for name in ("embedder", "encoder", "labels", "onnx", "regression")}


def environment(name: str, packages: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    parent = Path(os.environ.get("BERTKIT_CLIENTS_DIR") or tmp_path_factory.getbasetemp() / "clients")
    folder = installed_apart(parent / name.replace(" ", "-"), packages)
    return {**os.environ, "PYTHONPATH": folder, "HF_HUB_OFFLINE": "1"}


@pytest.mark.slow
@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_gives_the_same_numbers(
    name: str, models: dict[str, Path], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    packages, script = CLIENTS[name]
    value = json.dumps([{key: str(path) for key, path in models.items()}, TEXTS, PAIRS])
    env = environment(name, packages, tmp_path_factory)
    output = output_of([sys.executable, "-c", _FRAME.format(script), value], env=env, cwd=tmp_path)
    actual = json.loads(output.splitlines()[-1])
    worst = 0.0
    for what, values in actual.items():
        if what == "ids":
            assert values == load_tokenizer(models["embedder"])(TEXTS)["input_ids"]
            continue
        ours = bertkit_says(what, models)
        theirs = [np.array(row) for row in values]
        worst = max([worst, *(float(np.abs(mine - row).max()) for mine, row in zip(ours, theirs, strict=True))])
    assert worst < 1e-5
    print(f"{name}: {', '.join(actual)}: largest difference {worst:.1e}")


def bertkit_says(what: str, models: dict[str, Path]) -> list[np.ndarray]:
    if what == "embedder":
        return list(load_embedder(models["embedder"])(TEXTS))
    if what == "encoder":
        batch = load_tokenizer(models["encoder"])(TEXTS, padding=True, return_tensors="pt")
        with torch.no_grad():
            hidden = load_model(models["encoder"])(**batch).last_hidden_state.numpy()
        return [row[: int(mask.sum())] for row, mask in zip(hidden, batch["attention_mask"], strict=True)]
    logits = load_predictor(models[what]).logits(PAIRS)
    return list(logits[:, 0] if what == "regression" else logits)
