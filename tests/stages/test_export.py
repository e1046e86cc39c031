"""Export and verify: what comes out loads elsewhere, without bertkit, and a changed weight is found."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import make_text, minilm_dir, small_model, write_text
from safetensors.torch import load_file

from bertkit import export_model, load_model, load_tokenizer
from bertkit.cli import run
from bertkit.data.tokenizer import Tokenizer
from bertkit.files import sha256_file
from bertkit.interop.exports.sentence_transformers import Pooling, layout_files
from bertkit.model.config import POOLED_HEADS

CLASSES = {
    "pretraining": ("AutoModelForPreTraining", "BertForPreTraining"),
    "masked_lm": ("AutoModelForMaskedLM", "BertForMaskedLM"),
    "encoder": ("AutoModel", "BertModel"),
}
TEXTS = ["kan lon. min", "Ünïcode, [MASK] and 3.50 €", ""]

# Runs where bertkit cannot be imported; prints what loading said and gives the ids and the first output.
ELSEWHERE = """
import importlib.util, io, json, logging, sys, warnings
sys.path[:] = [path for path in sys.path if path]
sys.meta_path.insert(0, type("Blocker", (), {"find_spec": staticmethod(
    lambda name, *_: (_ for _ in ()).throw(ImportError(name)) if name.split(".")[0] == "bertkit" else None)})())
class_name, directory, texts = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
said = []
handler = logging.Handler(logging.WARNING)
handler.emit = lambda record: said.append(record.getMessage())
logging.getLogger().addHandler(handler)
import transformers
logging.getLogger("transformers").addHandler(handler)
transformers.logging.disable_progress_bar()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    model, info = getattr(transformers, class_name).from_pretrained(directory, output_loading_info=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
said += [str(warning.message) for warning in caught if "transformers" in warning.filename]
batch = tokenizer(texts, padding=True, return_tensors="pt")
out = model.eval()(**batch)[0].detach()
print(json.dumps({
    "class": type(model).__name__, "said": said, "missing": sorted(info["missing_keys"]),
    "unexpected": sorted(info["unexpected_keys"]), "ids": batch["input_ids"].tolist(), "out": out.tolist(),
}))
"""


def elsewhere(class_name: str, directory: Path, cwd: Path) -> dict[str, object]:
    command = [sys.executable, "-c", ELSEWHERE, class_name, str(directory), json.dumps(TEXTS)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 0, done.stderr
    result: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    assert "error" not in done.stderr.lower()
    return result


@pytest.fixture(scope="module")
def run_dir(prepared_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("export") / "run"
    small = ["model=tiny", "model.hidden_size=32", "model.max_position_embeddings=64", "segments.max_seq_length=40"]
    assert run(["pretrain", f"data_dir={prepared_dir}", f"output_dir={output}", *small, "steps=5", "device=cpu"]) == 0
    return output


@pytest.mark.parametrize("head", CLASSES)
def test_an_export_loads_where_bertkit_is_not(head: str, run_dir: Path, tmp_path: Path) -> None:
    output = tmp_path / head
    assert run(["export", f"checkpoint={run_dir}", f"head={head}", f"output_dir={output}"]) == 0
    auto, architecture = CLASSES[head]
    there = elsewhere(auto, output, tmp_path)
    assert (there["class"], there["missing"], there["unexpected"], there["said"]) == (architecture, [], [], [])
    batch = load_tokenizer(output)(TEXTS, padding=True, return_tensors="pt")
    assert there["ids"] == batch["input_ids"].tolist()
    out = load_model(output)(**batch)
    ours = out.last_hidden_state if head == "encoder" else out.logits["masked_lm"]
    is_token = batch["attention_mask"].bool()
    assert (torch.tensor(there["out"])[is_token] - ours[is_token]).abs().max() < 1e-5
    assert json.loads((output / "parity.json").read_text())["within_tolerance"]


def test_the_final_model_loads_and_leaves_only_heads_over(run_dir: Path, tmp_path: Path) -> None:
    there = elsewhere("AutoModelForPreTraining", run_dir / "model", tmp_path)
    assert (there["class"], there["missing"], there["unexpected"], there["said"]) == ("BertForPreTraining", [], [], [])
    left_over = {"AutoModelForMaskedLM": ("bert.pooler.", "cls.seq_relationship."), "AutoModel": ("cls.",)}
    for auto, prefixes in left_over.items():
        there = elsewhere(auto, run_dir / "model", tmp_path)
        assert there["missing"] == []
        assert there["unexpected"]
        assert all(name.startswith(prefixes) for name in there["unexpected"])  # type: ignore[attr-defined]


def test_exports_of_the_same_checkpoint_are_equal(run_dir: Path, tmp_path: Path) -> None:
    hashes = []
    for name in ("a", "b"):
        assert run(["export", f"checkpoint={run_dir}", "head=encoder", f"output_dir={tmp_path / name}"]) == 0
        hashes.append({path.name: sha256_file(path) for path in (tmp_path / name).iterdir()})
    assert hashes[0] == hashes[1]
    assert len(hashes[0]) == 8


def test_export_is_idempotent_and_refuses_another(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["export", f"checkpoint={run_dir}", f"output_dir={tmp_path / 'out'}"]
    assert run([*arguments, "head=encoder"]) == 0
    assert run([*arguments, "head=encoder"]) == 0
    assert "done already" in capsys.readouterr().out
    assert run([*arguments, "head=masked_lm"]) == 2
    assert "holds another export" in capsys.readouterr().err


def test_another_source_is_another_export(run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever file holds the weights."""
    for name, scale in (("one", 1.0), ("two", 2.0)):
        shutil.copytree(run_dir / "model", tmp_path / name)
        weights = load_file(tmp_path / name / "model.safetensors")
        (tmp_path / name / "model.safetensors").unlink()
        weights["bert.pooler.dense.weight"] *= scale
        torch.save(weights, tmp_path / name / "pytorch_model.bin")
    assert run(["export", f"checkpoint={tmp_path / 'one'}", "head=encoder", f"output_dir={tmp_path / 'out'}"]) == 0
    assert run(["export", f"checkpoint={tmp_path / 'two'}", "head=encoder", f"output_dir={tmp_path / 'out'}"]) == 2
    assert "holds another export" in capsys.readouterr().err


def test_the_card_speaks_of_the_exported_step(run_dir: Path, tmp_path: Path) -> None:
    assert run(["export", f"checkpoint={run_dir}", "head=encoder", f"output_dir={tmp_path / 'out'}"]) == 0
    card = (tmp_path / "out" / "README.md").read_text()
    assert "| steps | 5 |" in card
    assert "| mlm_loss |" in card


TEXT = ["A river rose slowly.", "Der Ausschuss tagt am Dienstag; entschieden ist nichts.", "x", "word " * 300]


def embeddings(model_dir: Path, *, mode: str, normalize: bool) -> torch.Tensor:
    """The sentence embeddings by bertkit alone."""
    batch = load_tokenizer(model_dir)(TEXT, padding=True, truncation=True, max_length=256, return_tensors="pt")
    with torch.no_grad():
        hidden = load_model(model_dir)(**batch).last_hidden_state
    mask = batch["attention_mask"][..., None]
    pooled = hidden[:, 0] if mode == "cls" else (hidden * mask).sum(1) / mask.sum(1)
    return torch.nn.functional.normalize(pooled) if normalize else pooled


@pytest.mark.parametrize("mode", [True, "cls"])
def test_a_real_encoder_as_a_sentence_transformer(
    mode: object, tmp_path: Path, caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
) -> None:
    """Import, export, import: the same embeddings in every place; nothing is said on loading."""
    from sentence_transformers import SentenceTransformer

    source, output = minilm_dir(), tmp_path / "out"
    pooling = f"sentence_transformers={str(mode).lower()}"
    assert run(["export", f"checkpoint={source}", "head=encoder", pooling, f"output_dir={output}"]) == 0
    caplog.clear()
    recwarn.clear()
    loaded = SentenceTransformer(str(output), device="cpu")
    assert [record.getMessage() for record in caplog.records if record.levelname != "INFO"] == []
    assert [str(warning.message) for warning in recwarn if "transformers" in str(warning.filename)] == []
    assert loaded.max_seq_length == 256  # as the source says
    theirs = torch.from_numpy(loaded.encode(TEXT))
    ours = embeddings(output, mode="cls" if mode == "cls" else "mean", normalize=True)
    assert (theirs - ours).abs().max() < 1e-5
    original = torch.from_numpy(SentenceTransformer(str(source), device="cpu").encode(TEXT))
    assert ((original - ours).abs().max() < 1e-5) == (mode is True)
    again = tmp_path / "again"
    assert (
        run(["export", f"checkpoint={output}", "head=encoder", "sentence_transformers=true", f"output_dir={again}"])
        == 0
    )
    for path in ("model.safetensors", "modules.json", "1_Pooling/config.json", "config.json", "tokenizer.json"):
        assert (output / path).read_bytes() == (again / path).read_bytes()
    weights = load_file(source / "model.safetensors")
    weights.pop("embeddings.position_ids", None)
    exported = load_file(again / "model.safetensors")
    assert set(exported) == set(weights)
    assert all(exported[name].numpy().tobytes() == weights[name].numpy().tobytes() for name in weights)


def test_onnx_beside_the_weights(run_dir: Path, tmp_path: Path) -> None:
    hashes = []
    for name in ("a", "b"):
        arguments = [f"checkpoint={run_dir}", "head=pretraining", "onnx=true", f"output_dir={tmp_path / name}"]
        assert run(["export", *arguments]) == 0
        hashes.append({path.name: sha256_file(path) for path in (tmp_path / name).rglob("*") if path.is_file()})
    assert hashes[0] == hashes[1]
    rows = json.loads((tmp_path / "a" / "parity.json").read_text())["onnx"]
    assert {tuple(row["shape"]) for row in rows} == {(1, 7), (3, 64), (5, 64)}
    assert {row["output"] for row in rows} == {"prediction_logits", "seq_relationship_logits"}
    assert max(row["max_abs"] for row in rows) < 1e-5

    import onnxruntime

    session = onnxruntime.InferenceSession(tmp_path / "a" / "onnx" / "model.onnx")
    batch = load_tokenizer(tmp_path / "a")(TEXTS, padding=True, return_tensors="np")
    logits, _ = session.run(None, batch)
    ours = load_model(tmp_path / "a")(**{name: torch.from_numpy(array) for name, array in batch.items()})
    is_token = torch.from_numpy(batch["attention_mask"]).bool()
    assert (torch.from_numpy(logits)[is_token] - ours.logits["masked_lm"][is_token]).abs().max() < 1e-5
    machine = [str(tmp_path).encode(), b"site-packages", b"/work"]
    assert not any(place in (tmp_path / "a" / "onnx" / "model.onnx").read_bytes() for place in machine)


TASKS = {
    "sequence": "BertForSequenceClassification",
    "token": "BertForTokenClassification",
    "span": "BertForQuestionAnswering",
    "choice": "BertForMultipleChoice",
}


@pytest.mark.parametrize("head", TASKS)
def test_task_heads_are_exported(head: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    model = small_model(
        tokenizer.vocab_size, heads=(head,), labels=("no", "maybe", "yes"), with_pooler=head in POOLED_HEADS
    )
    export_model(model, tokenizer, tmp_path / "in")
    output = tmp_path / "out"
    arguments = [f"checkpoint={tmp_path / 'in'}", "head=task", "onnx=true", f"output_dir={output}"]
    assert run(["export", *arguments]) == 0
    assert json.loads((output / "config.json").read_text())["architectures"] == [TASKS[head]]
    assert (output / "model.safetensors").read_bytes() == (tmp_path / "in" / "model.safetensors").read_bytes()
    assert {row["max_abs"] < 1e-5 for row in json.loads((output / "parity.json").read_text())["onnx"]} == {True}


@pytest.mark.parametrize("head", ["pretraining", "encoder", "sequence", "span"])
def test_the_layout_of_google(head: str, run_dir: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
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
    first, second = load_model(output), load_model(alone)
    assert list(first.model.heads) == list(second.model.heads)
    weights = first.state_dict()
    assert set(weights) == set(second.state_dict())
    assert all(torch.equal(weights[name], tensor) for name, tensor in second.state_dict().items())
    assert run(["verify", f"model_dir={alone}", f"output={tmp_path / 'parity.json'}"]) == 0
    assert json.loads((tmp_path / "parity.json").read_text())["rewritten_because"]


def test_requests_that_do_not_fit(run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = {
        ("head=task",): "has no task head; it holds masked_lm, next_sentence",
        ("head=masked_lm", "sentence_transformers=true"): "needs head=encoder; this has masked_lm",
        (
            "head=encoder",
            "sentence_transformers=max",
        ): "sentence_transformers='max': expected true or false or mean or cls",
    }
    for arguments, message in cases.items():
        assert run(["export", f"checkpoint={run_dir}", *arguments, f"output_dir={tmp_path / 'out'}"]) == 2
        assert message in capsys.readouterr().err
        assert list(tmp_path.iterdir()) == []


def test_a_head_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [f"checkpoint={minilm_dir()}", "head=masked_lm", f"output_dir={tmp_path / 'out'}"]
    assert run(["export", *arguments]) == 2
    assert (
        "has no weights for head=masked_lm (heads.masked_lm.bias, ...); it holds the encoder only"
        in capsys.readouterr().err
    )
    assert not (tmp_path / "out").exists()


def test_a_changed_export_is_not_done_already(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["export", f"checkpoint={run_dir}", "head=encoder", f"output_dir={tmp_path / 'out'}"]
    assert run(arguments) == 0
    (tmp_path / "out" / "config.json").write_text("{}")
    assert run(arguments) == 2
    assert "config.json changed since it was exported; remove the directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("modules.json", "{}", "modules.json"),
        ("modules.json", "[{}]", "modules.json"),
        ("1_Pooling/config.json", "[]", "pools by"),
        ("1_Pooling/config.json", '{"pooling_mode_max_tokens": true}', "pools by"),
        ("sentence_bert_config.json", "[]", "max_seq_length=0"),
        ("sentence_bert_config.json", '{"max_seq_length": "x"}', "max_seq_length='x'"),
    ],
)
def test_broken_files_of_a_sentence_transformer(
    name: str, content: str, message: str, tokenizer: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = export_model(small_model(tokenizer.vocab_size, heads=()), tokenizer, tmp_path / "in")
    for path, text in layout_files(Pooling(), 26, 41).items():
        (source / path).parent.mkdir(exist_ok=True)
        (source / path).write_text(text)
    (source / name).write_text(content)
    arguments = ["export", f"checkpoint={source}", "sentence_transformers=true", f"output_dir={tmp_path / 'out'}"]
    assert run(arguments) == 2
    assert message in capsys.readouterr().err
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
        "segments.max_seq_length=32",
        "segments.dupe_factor=1",
        "tokenizer.vocab_size=131",
        "tokenizer.rules=google",
    ]
    assert run(["prepare", "segments=google", f"corpus.path={corpus}", *sizes, f"output_dir={tmp_path / 'data'}"]) == 0
    small = ["model=tiny", "model.hidden_size=32", "model.max_position_embeddings=40", "steps=2", "device=cpu"]
    arguments = ["segments=google", f"data_dir={tmp_path / 'data'}", *small, f"output_dir={tmp_path / 'run'}"]
    assert run(["pretrain", *arguments]) == 0
    assert run(["export", f"checkpoint={tmp_path / 'run'}", f"output_dir={tmp_path / 'out'}"]) == 0
    assert "sequences of at most 32 tokens" in (tmp_path / "out" / "README.md").read_text()
