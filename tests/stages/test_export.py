"""Export and verify: what comes out loads elsewhere, without bertkit, and a changed weight is found."""

import json
import logging
import re
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Capsys, headed_model, make_text, minilm_dir, refused, small_config, small_model, write_text
from interop.elsewhere import loaded_elsewhere
from safetensors.torch import load_file, save_file

from bertkit import export_model, load_model, load_tokenizer
from bertkit.base.files import sha256_file
from bertkit.cli import run
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.interop.model_dir import HuggingFaceFiles
from bertkit.interop.sentence_transformers.folder import Pooling
from bertkit.interop.sentence_transformers.layout import layout_files
from bertkit.model.attention_config import AttentionConfig
from bertkit.model.head.head import any_pooled

CLASSES = {
    "pretraining": ("AutoModelForPreTraining", "BertForPreTraining"),
    "masked_lm": ("AutoModelForMaskedLM", "BertForMaskedLM"),
    "encoder": ("AutoModel", "BertModel"),
}
TEXTS = ["kan lon. min", "Ünïcode, [MASK] and 3.50 €", ""]


@pytest.fixture(scope="module")
def run_dir(prepared_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("export") / "run"
    small = [
        "model=medium",
        "model.num_hidden_layers=2",
        "model.num_attention_heads=2",
        "model.hidden_size=32",
        "model.max_position_embeddings=64",
        "segments.max_seq_length=40",
    ]
    assert run(["pretrain", f"data_dir={prepared_dir}", f"output_dir={output}", *small, "steps=5", "device=cpu"]) == 0
    return output


@pytest.fixture(scope="module")
def exports(run_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exports")
    for head in CLASSES:
        assert run(["export", f"checkpoint={run_dir}", f"head={head}", f"output_dir={folder / head}"]) == 0
    return folder


@pytest.fixture(scope="module")
def elsewhere(exports: Path, run_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The exports, and the run's own model by each class, in a process without bertkit."""
    cases = {head: (auto, exports / head) for head, (auto, _) in CLASSES.items()}
    cases |= {f"model as {auto}": (auto, run_dir / "model") for auto, _ in CLASSES.values()}
    loaded = loaded_elsewhere(list(cases.values()), TEXTS, tmp_path_factory.mktemp("elsewhere"))
    return dict(zip(cases, loaded, strict=True))


@pytest.mark.parametrize("head", CLASSES)
def test_an_export_loads_where_bertkit_is_not(head: str, exports: Path, elsewhere: dict[str, dict[str, Any]]) -> None:
    there, (_, architecture) = elsewhere[head], CLASSES[head]
    assert (there["class"], there["missing"], there["unexpected"], there["messages"]) == (architecture, [], [], [])
    batch = load_tokenizer(exports / head)(TEXTS, padding=True, return_tensors="pt")
    assert there["ids"] == [batch["input_ids"].tolist()]
    out = load_model(exports / head)(**batch)
    ours = out.last_hidden_state if head == "encoder" else out.logits["masked_lm"]
    is_token = batch["attention_mask"].bool()
    assert (torch.tensor(next(iter(there["outputs"].values())))[is_token] - ours[is_token]).abs().max() < 1e-5
    assert json.loads((exports / head / "parity.json").read_text())["within_tolerance"]


def test_the_final_model_loads_and_leaves_only_heads_over(elsewhere: dict[str, dict[str, Any]]) -> None:
    there = elsewhere["model as AutoModelForPreTraining"]
    assert (there["class"], there["missing"], there["unexpected"], there["messages"]) == (
        "BertForPreTraining",
        [],
        [],
        [],
    )
    left_over = {"AutoModelForMaskedLM": ("bert.pooler.", "cls.seq_relationship."), "AutoModel": ("cls.",)}
    for auto, prefixes in left_over.items():
        there = elsewhere[f"model as {auto}"]
        assert there["missing"] == []
        assert there["unexpected"]
        assert all(name.startswith(prefixes) for name in there["unexpected"])


def test_exports_of_the_same_checkpoint_are_equal(run_dir: Path, exports: Path, tmp_path: Path) -> None:
    assert run(["export", f"checkpoint={run_dir}", "head=encoder", f"output_dir={tmp_path / 'again'}"]) == 0
    folders = exports / "encoder", tmp_path / "again"
    one, two = ({path.name: sha256_file(path) for path in folder.iterdir()} for folder in folders)
    assert one == two
    assert len(one) == 8


def test_export_is_idempotent_and_refuses_another(run_dir: Path, exports: Path, tmp_path: Path, capsys: Capsys) -> None:
    shutil.copytree(exports / "encoder", tmp_path / "out")
    arguments = ["export", f"checkpoint={run_dir}", f"output_dir={tmp_path / 'out'}"]
    assert run([*arguments, "head=encoder"]) == 0
    assert "done already" in capsys.readouterr().out
    refused(run([*arguments, "head=masked_lm"]), "out holds an export", capsys)
    (tmp_path / "out" / "config.json").write_text("{}")
    refused(run([*arguments, "head=encoder"]), "config.json changed", capsys)


def test_the_same_heads_by_another_setting_are_the_same_export(
    run_dir: Path, exports: Path, tmp_path: Path, capsys: Capsys
) -> None:
    shutil.copytree(exports / "pretraining", tmp_path / "out")
    assert run(["export", f"checkpoint={run_dir}", f"output_dir={tmp_path / 'out'}"]) == 0
    assert "done already" in capsys.readouterr().out


def test_another_source_is_another_export(run_dir: Path, tmp_path: Path, capsys: Capsys) -> None:
    for name, scale in (("one", 1.0), ("two", 2.0)):
        shutil.copytree(run_dir / "model", tmp_path / name)
        weights = load_file(tmp_path / name / "model.safetensors")
        (tmp_path / name / "model.safetensors").unlink()
        weights["bert.pooler.dense.weight"] *= scale
        torch.save(weights, tmp_path / name / "pytorch_model.bin")
    assert run(["export", f"checkpoint={tmp_path / 'one'}", "head=encoder", f"output_dir={tmp_path / 'out'}"]) == 0
    assert run(["export", f"checkpoint={tmp_path / 'two'}", "head=encoder", f"output_dir={tmp_path / 'out'}"]) == 2
    assert "out holds an export" in capsys.readouterr().err


def test_the_card_speaks_of_the_exported_step(exports: Path) -> None:
    card = (exports / "encoder" / "README.md").read_text()
    assert "| steps | 5 |" in card
    assert "| mlm_loss |" in card


TEXT = ["A river rose slowly.", "Der Ausschuss tagt am Dienstag; entschieden ist nichts.", "x", "word " * 300]


def embeddings(model_dir: Path, *, mode: str, longest: int, normalize: bool) -> torch.Tensor:
    batch = load_tokenizer(model_dir)(TEXT, padding=True, truncation=True, max_length=longest, return_tensors="pt")
    with torch.no_grad():
        hidden = load_model(model_dir)(**batch).last_hidden_state
    mask = batch["attention_mask"][..., None]
    pooled = hidden[:, 0] if mode == "cls" else (hidden * mask).sum(1) / mask.sum(1)
    return torch.nn.functional.normalize(pooled) if normalize else pooled


def as_sentence_transformer(source: Path, mode: object, output: Path) -> Path:
    pooling = f"sentence_transformers={str(mode).lower()}"
    assert run(["export", f"checkpoint={source}", "head=encoder", pooling, f"output_dir={output}"]) == 0
    return output


def check_embeddings(output: Path, mode: str, longest: int, normalize: bool) -> torch.Tensor:
    """Load it in both libraries, compare the embeddings, and return them; no warning may appear."""
    from sentence_transformers import SentenceTransformer

    printed: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: printed.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loaded = SentenceTransformer(str(output), device="cpu")
    finally:
        logging.getLogger().removeHandler(handler)
    assert printed == []
    assert [str(warning.message) for warning in caught if "transformers" in str(warning.filename)] == []
    assert loaded.max_seq_length == longest
    theirs = torch.from_numpy(loaded.encode(TEXT))
    assert (theirs - embeddings(output, mode=mode, longest=longest, normalize=normalize)).abs().max() < 1e-5
    return theirs


@pytest.mark.slow
@pytest.mark.parametrize("mode", [True, "cls"])
def test_a_real_encoder_as_a_sentence_transformer(mode: object, tmp_path: Path) -> None:
    """The same embeddings as the original's, unless another pooling is asked for; no byte of a weight changes."""
    from sentence_transformers import SentenceTransformer

    source = minilm_dir()
    output = as_sentence_transformer(source, mode, tmp_path / "out")
    ours = check_embeddings(output, "cls" if mode == "cls" else "mean", 256, normalize=True)  # as the source says
    original = torch.from_numpy(SentenceTransformer(str(source), device="cpu").encode(TEXT))
    assert ((original - ours).abs().max() < 1e-5) == (mode is True)
    weights, exported = load_file(source / "model.safetensors"), load_file(output / "model.safetensors")
    weights.pop("embeddings.position_ids", None)
    assert set(exported) == set(weights)
    assert all(exported[name].numpy().tobytes() == weights[name].numpy().tobytes() for name in weights)


@pytest.mark.parametrize("mode", ["mean", "cls"])
def test_a_sentence_transformer_there_and_back(mode: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    """The pooling of a directory is kept when it is exported again."""
    source = export_model(small_model(tokenizer.vocab_size, heads=()), tokenizer, tmp_path / "in")
    output = as_sentence_transformer(source, mode, tmp_path / "out")
    check_embeddings(output, mode, small_config().max_position_embeddings, normalize=False)
    again = as_sentence_transformer(output, True, tmp_path / "again")
    for path in ("model.safetensors", "modules.json", "1_Pooling/config.json", "config.json", "tokenizer.json"):
        assert (output / path).read_bytes() == (again / path).read_bytes()
    assert as_sentence_transformer(output, mode, again) == again  # done already
    other = "sentence_transformers=" + {"mean": "cls", "cls": "mean"}[mode]
    assert run(["export", f"checkpoint={output}", "head=encoder", other, f"output_dir={again}"]) == 2


def export_onnx(run_dir: Path, output: Path) -> None:
    assert run(["export", f"checkpoint={run_dir}", "head=pretraining", "onnx=true", f"output_dir={output}"]) == 0


@pytest.mark.slow
def test_onnx_exports_of_the_same_checkpoint_are_equal(run_dir: Path, tmp_path: Path) -> None:
    hashes = []
    for name in ("a", "b"):
        export_onnx(run_dir, tmp_path / name)
        hashes.append({path.name: sha256_file(path) for path in (tmp_path / name).rglob("*") if path.is_file()})
    assert hashes[0] == hashes[1]


@pytest.mark.parametrize("head", ["pretraining", "task"])
def test_a_model_is_opened_once_and_once_by_transformers(
    head: str, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With head=task the task's head is kept alone, also where there are others."""
    import transformers

    export_model(small_model(tokenizer.vocab_size), tokenizer, tmp_path / "in")
    if head == "task":
        weights = load_file(tmp_path / "in" / "model.safetensors")
        labelled = small_model(tokenizer.vocab_size, heads=("sequence",), labels=("no", "yes"), with_pooler=True)
        shutil.rmtree(tmp_path / "in")
        export_model(labelled, tokenizer, tmp_path / "in")
        weights |= load_file(tmp_path / "in" / "model.safetensors")
        save_file(weights, tmp_path / "in" / "model.safetensors", {"format": "pt"})
    opened: list[str] = []
    read, load = HuggingFaceFiles.read, transformers.PreTrainedModel.from_pretrained.__func__
    monkeypatch.setattr(HuggingFaceFiles, "read", lambda files: (opened.append("bertkit"), read(files))[1])
    counted = classmethod(lambda cls, *value, **named: (opened.append("transformers"), load(cls, *value, **named))[1])
    monkeypatch.setattr(transformers.PreTrainedModel, "from_pretrained", counted)
    assert run(["export", f"checkpoint={tmp_path / 'in'}", f"head={head}", f"output_dir={tmp_path / 'out'}"]) == 0
    assert opened == ["bertkit", "transformers"]
    kept = ["sequence"] if head == "task" else ["masked_lm", "next_sentence"]
    assert list(load_model(tmp_path / "out").model.heads) == kept


TASKS = {"sequence": "SequenceClassification", "token": "TokenClassification", "span": "QuestionAnswering", "choice": "MultipleChoice"}  # fmt: skip


def exported_task(head: str, tokenizer: Tokenizer, folder: Path, *more: str) -> Path:
    labels, pooler = ("no", "maybe", "yes"), any_pooled([head])
    export_model(
        small_model(tokenizer.vocab_size, heads=(head,), labels=labels, with_pooler=pooler), tokenizer, folder / "in"
    )
    assert run(["export", f"checkpoint={folder / 'in'}", "head=task", *more, f"output_dir={folder / 'out'}"]) == 0
    assert json.loads((folder / "out" / "config.json").read_text())["architectures"] == [f"BertFor{TASKS[head]}"]
    assert (folder / "out" / "model.safetensors").read_bytes() == (folder / "in" / "model.safetensors").read_bytes()
    return folder / "out"


@pytest.mark.parametrize("head", TASKS)
def test_task_heads_are_exported(head: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    exported_task(head, tokenizer, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("head", TASKS)
def test_onnx_of_task_heads(head: str, tokenizer: Tokenizer, tmp_path: Path, capsys: Capsys) -> None:
    output = exported_task(head, tokenizer, tmp_path, "onnx=true")
    assert len(re.findall(r"(?m)^onnx/model\.onnx: differs from transformers by up to ", capsys.readouterr().out)) == 1
    assert {row["max_abs"] < 1e-5 for row in json.loads((output / "parity.json").read_text())["onnx"]} == {True}


@pytest.mark.parametrize("head", ["pretraining", "encoder", "sequence", "span"])
def test_google_layout_holds_the_same_model(head: str, run_dir: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    """The added files make the same model by themselves."""
    source, option = run_dir, head
    if head in TASKS:
        heads, source, option = (head,), tmp_path / "in", "task"
        export_model(small_model(tokenizer.vocab_size, heads=heads, with_pooler=head == "sequence"), tokenizer, source)
    output, alone = tmp_path / "out", tmp_path / "google"
    assert run(["export", f"checkpoint={source}", f"head={option}", "google=true", f"output_dir={output}"]) == 0
    alone.mkdir()
    for name in ("bert_config.json", "vocab.txt", "bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001"):
        shutil.copy(output / name, alone / name)
    assert run(["verify", f"model_dir={output}", f"output={tmp_path / 'whole.json'}"]) == 0  # with its own certificate
    first, second = load_model(output), load_model(alone)
    assert list(first.model.heads) == list(second.model.heads)
    weights = first.state_dict()
    assert set(weights) == set(second.state_dict())
    assert all(torch.equal(weights[name], tensor) for name, tensor in second.state_dict().items())
    assert run(["verify", f"model_dir={alone}", f"output={tmp_path / 'parity.json'}"]) == 0
    assert json.loads((tmp_path / "parity.json").read_text())["rewritten_because"]


def test_requests_that_do_not_fit(run_dir: Path, tmp_path: Path, capsys: Capsys) -> None:
    cases = {
        ("head=task",): "has no task head; it holds masked_lm, next_sentence",
        ("head=masked_lm", "sentence_transformers=true"): "needs head=encoder; this has masked_lm",
        ("head=encoder", "sentence_transformers=max"): "sentence_transformers='max': expected true or false or mean",
    }
    for arguments, message in cases.items():
        refused(run(["export", f"checkpoint={run_dir}", *arguments, f"output_dir={tmp_path / 'out'}"]), message, capsys)
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("changes", "line"), [
    ({"heads": ("generation",)}, "has no generation head"),
    ({"heads": ("token",), "labels": ("O", "B-X")}, "has no token head"),
    ({"layer_norm_eps": 1e-5}, "has layer_norm_eps=1e-12 alone, this model 1e-05"),
    ({"hidden_act": "silu"}, "has hidden_act gelu and relu alone, this model silu"),
])  # fmt: skip
def test_what_google_cannot_hold_is_refused_in_a_line(
    changes: dict[str, Any], line: str, tokenizer: Tokenizer, tmp_path: Path, capsys: Capsys
) -> None:
    """Before anything is compared; of an encoder-decoder the line named all 37 tensors."""
    model = headed_model(tokenizer, *changes.pop("heads", ()), **changes)
    source = export_model(model, tokenizer, tmp_path / "in")
    capsys.readouterr()
    arguments = [f"model_dir={source}", "head=encoder" if not model.heads else "head=task", "google=true"]
    words = f"google=true: google-research/bert {line}; leave it out"
    refused(run(["export", *arguments, f"output_dir={tmp_path / 'out'}"]), words, capsys, alone=True)


def test_a_causal_model_that_fills_masks_is_no_causal_lm(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Its masked LM loss is compared with that of transformers, too."""
    model = small_model(tokenizer.vocab_size, heads=["masked_lm"], attention=AttentionConfig(pattern="causal"))
    export_model(model, tokenizer, tmp_path / "model")
    arguments = [f"model_dir={tmp_path / 'model'}", "head=masked_lm", f"output_dir={tmp_path / 'hf'}"]
    assert run(["export", *arguments]) == 0
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert (config["architectures"], config["is_decoder"]) == (["BertForMaskedLM"], True)
    certificate = json.loads((tmp_path / "hf" / "parity.json").read_text())
    assert {row["what"] for row in certificate["comparisons"]} >= {"logits.masked_lm", "loss"}
    card = (tmp_path / "hf" / "README.md").read_text()
    assert "AutoModelForMaskedLM.from_pretrained" in card
    assert "CausalLM" not in card
    assert "does not predict the next token" in card


def test_export_of_missing_head_is_refused(tokenizer: Tokenizer, tmp_path: Path, capsys: Capsys) -> None:
    encoder = export_model(small_model(tokenizer.vocab_size, heads=()), tokenizer, tmp_path / "in")
    arguments = [f"checkpoint={encoder}", "head=masked_lm", f"output_dir={tmp_path / 'out'}"]
    words = "has no weights for head=masked_lm (heads.masked_lm.bias, ...); it holds the encoder only"
    refused(run(["export", *arguments]), words, capsys)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("name", "content", "message"), [
    ("modules.json", "{}", "modules.json"),
    ("modules.json", "[{}]", "modules.json"),
    ("1_Pooling/config.json", "[]", "expected a group of values"),
    ("1_Pooling/config.json", '{"pooling_mode": 3}', "pooling_mode=3: expected some of"),
    ("sentence_bert_config.json", "[]", "expected a group of values"),
    ("sentence_bert_config.json", '{"max_seq_length": "x"}', "max_seq_length='x'"),
])  # fmt: skip
def test_broken_files_of_a_sentence_transformer(
    name: str, content: str, message: str, tokenizer: Tokenizer, tmp_path: Path, capsys: Capsys
) -> None:
    source = export_model(small_model(tokenizer.vocab_size, heads=()), tokenizer, tmp_path / "in")
    for path, text in layout_files(Pooling(), 26, 41).items():
        (source / path).parent.mkdir(exist_ok=True)
        (source / path).write_text(text)
    (source / name).write_text(content)
    arguments = ["export", f"checkpoint={source}", "sentence_transformers=true", f"output_dir={tmp_path / 'out'}"]
    refused(run(arguments), message, capsys)
    assert not (tmp_path / "out").exists()


def test_the_card_of_a_continued_run_says_so(run_dir: Path, prepared_dir: Path, tmp_path: Path) -> None:
    more = ["segments.max_seq_length=40", "steps=1", "device=cpu", f"output_dir={tmp_path / 'run'}"]
    assert run(["pretrain", f"data_dir={prepared_dir}", f"init_from={run_dir}", *more]) == 0
    assert run(["export", f"checkpoint={tmp_path / 'run'}", "head=encoder", f"output_dir={tmp_path / 'out'}"]) == 0
    for card in ("run/model/README.md", "out/README.md"):
        text = (tmp_path / card).read_text()
        assert "| started from | another model's weights |" in text
        assert str(run_dir) not in text


def test_a_run_on_fixed_instances_is_exported(tmp_path: Path) -> None:
    """Its settings are those of the stored instances."""
    corpus = write_text(tmp_path / "text.txt", make_text(11))
    sizes = [
        "segments.max_seq_length=32", "segments.dupe_factor=1", "tokenizer.vocab_size=131", "tokenizer.rules=google",
    ]  # fmt: skip
    assert run(["prepare", "segments=google", f"corpus.path={corpus}", *sizes, f"output_dir={tmp_path / 'data'}"]) == 0
    small = [
        "model=medium",
        "model.num_hidden_layers=2",
        "model.num_attention_heads=2",
        "model.hidden_size=32",
        "model.max_position_embeddings=40",
        "steps=2",
        "device=cpu",
    ]
    arguments = ["segments=google", f"data_dir={tmp_path / 'data'}", *small, f"output_dir={tmp_path / 'run'}"]
    assert run(["pretrain", *arguments]) == 0
    assert run(["export", f"checkpoint={tmp_path / 'run'}", f"output_dir={tmp_path / 'out'}"]) == 0
    assert "sequences of at most 32 tokens" in (tmp_path / "out" / "README.md").read_text()
