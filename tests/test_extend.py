"""The objectives of the guide that have parameters of their own, or heads, or causal attention: trained, stopped, in two processes, exported."""

import dataclasses
import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from conftest import TINY_FINETUNE, TINY_PRETRAIN, free_port, options_so_far, small_model
from safetensors.torch import load_file

import bertkit
from bertkit.apps.explain.attributions import run_copies
from bertkit.base import plugins
from bertkit.base.batch import Batch
from bertkit.base.errors import InputError
from bertkit.cli import run
from bertkit.interop.load import load_packed
from bertkit.objectives.losses import best_tokens, log_probabilities
from bertkit.objectives.objective import Moment, Objective
from bertkit.tasks.feature import Feature
from bertkit.tasks.task_config import KINDS
from bertkit.train import micro_batches

GUIDE = Path(__file__).resolve().parents[1] / "recipes" / "extend"
PRETRAINING = ("mixed_next_token", "replaced_tokens", "neighbours", "word_order")
OPTIONS: dict[str, dict[str, Any]] = {
    "mixed_next_token": {"causal": 8},
    "distillation": {"teacher": "teacher", "layers_weight": 3.0},
}
LOSSES = {  # one of each
    "mixed_next_token": "causal", "replaced_tokens": "replaced", "neighbours": "neighbours", "word_order": "word_order", "distillation": "layers"
}  # fmt: skip
ROWS = [{"text": f"{'kam' if n % 2 else 'rum'} tem", "label": "yes" if n % 2 else "no"} for n in range(40)]


@pytest.fixture(autouse=True)
def guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A working directory; the guide's modules on Python's path."""
    monkeypatch.chdir(tmp_path)
    for module in KINDS.values():  # lest they register in the copy alone
        importlib.import_module(module)
    built_in = {key: made for key, made in options_so_far().items() if not plugins.is_plugin(*key)}
    for name, empty in (("_options", built_in), ("_modules", set()), ("_used", {})):
        monkeypatch.setattr(plugins, name, empty)
    monkeypatch.setattr(sys, "path", [*sys.path, str(GUIDE)])
    monkeypatch.setenv(plugins.MODULES, "")
    yield
    for name in (*PRETRAINING, "distillation", "adversarial"):
        sys.modules.pop(name, None)


@pytest.fixture
def teacher(start: Path) -> Path:
    """A model with the labels of `ROWS`."""
    job = bertkit.Finetuning(start, train=ROWS, dev=ROWS[:10], batch={"sequences": 8}, **{"task.max_seq_length": 16})
    list(bertkit.fit(job, steps=20, learning_rate=1e-2))
    return bertkit.export_model(job.model, job.tokenizer, "teacher")


def objective(name: str) -> Objective:
    """An objective of the guide, with its options here."""
    importlib.import_module(name)
    made = plugins.bind("objective", name, OPTIONS.get(name, {}))()
    assert isinstance(made, Objective)
    return made


def type_for(name: str) -> dict[str, str]:
    """The settings of a model whose type has the heads of an objective."""
    return {"model.family": "electra"} if name == "replaced_tokens" else {}


def words_of(name: str, start: Path, prepared_dir: Path) -> list[str]:
    """The command that trains an objective, without its output."""
    own = [f"plugins=[{name}]", f"objective={name}", "checkpoint.every_steps=2", "batch.micro_sequences=2"]
    own += [f"objective_options.{key}={value}" for key, value in OPTIONS.get(name, {}).items()]
    if name in PRETRAINING:
        own += [f"{key}={value}" for key, value in type_for(name).items()]
        return ["pretrain", *TINY_PRETRAIN, "steps=4", f"data_dir={prepared_dir}", *own]
    Path("rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    files = [f"task.files.{split}=rows.jsonl" for split in ("train", "dev")]
    return ["finetune", *TINY_FINETUNE, "task=classification", *files, f"model_dir={start}", *own]


@pytest.mark.parametrize("name", [*PRETRAINING, "distillation"])
def test_an_objective_of_the_guide_is_short_and_resumes_to_the_same_bytes(
    start: Path, prepared_dir: Path, teacher: Path, name: str
) -> None:
    assert len((GUIDE / f"{name}.py").read_text().splitlines()) <= 60
    words = words_of(name, start, prepared_dir)
    assert run([*words, "output_dir=whole"]) == 0
    last, *_ = sorted(Path("whole/checkpoints").iterdir(), reverse=True)
    shutil.copytree("whole", "cut")
    Path("cut/eval.json").unlink()
    shutil.rmtree("cut/model")
    shutil.rmtree(Path("cut/checkpoints", last.name))
    assert run([*words, "output_dir=cut"]) == 0
    files = [
        file
        for file in ("model.safetensors", "objective.safetensors", "optimizer.safetensors")
        if (last / file).exists()
    ]
    assert len(files) == (3 if name in ("replaced_tokens", "distillation") else 2)
    for file in files:
        assert (last / file).read_bytes() == Path("cut/checkpoints", last.name, file).read_bytes()
    assert not any(key.startswith("objective") for key in load_file("whole/model/model.safetensors"))
    rows = [json.loads(line) for line in Path("whole/metrics.jsonl").read_text().splitlines()]
    assert f"{LOSSES[name]}_loss" in rows[-1]


WORLD = """
import os, sys
sys.path.insert(0, sys.argv[1])
import test_extend
test_extend.train_all(*sys.argv[2:])
"""


def train_all(start: str, prepared_dir: str, output: str) -> None:
    """Train all five objectives; save the weights and what is trained beside them."""
    results = {}
    for name in (*PRETRAINING, "distillation"):
        made = objective(name)
        micro_batches.AUTO_MICRO_TOKENS["cpu"] = 80 if name in PRETRAINING else 20  # two micro-batches or more
        job: Any
        if name in PRETRAINING:
            data = bertkit.open_dataset(prepared_dir)
            shape = {"model.num_hidden_layers": 1, "model.hidden_size": 16, "model.num_attention_heads": 2}
            model = bertkit.new_model("tiny", data.tokenizer, objective=made, **shape, **type_for(name))
            job = bertkit.Pretraining(model, data, made, batch_sequences=8, max_seq_length=20)
        else:
            job = bertkit.Finetuning(
                start, train=ROWS, dev=ROWS[:10], objective=made, batch={"sequences": 8}, **{"task.max_seq_length": 16}
            )
        beside: list[Any] = []
        begin = made.begin
        made.begin = lambda model, begin=begin, beside=beside: beside.append(begin(model)) or beside[-1]  # type: ignore[method-assign,misc]
        list(bertkit.fit(job, steps=3, learning_rate=1e-2))
        modules = [job.model, *filter(None, beside)]
        results |= {
            f"{name}.{n}.{key}": t for n, module in enumerate(modules) for key, t in module.state_dict().items()
        }
    torch.save(results, output)


def test_two_processes_train_what_one_does(
    start: Path, prepared_dir: Path, teacher: Path, python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All five objectives, in two processes: the same weights, of the model and beside it."""
    monkeypatch.setitem(micro_batches.AUTO_MICRO_TOKENS, "cpu", 0)  # restored afterwards
    train_all(str(start), str(prepared_dir), "alone.pt")
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "PYTHONPATH": str(GUIDE)}
    command = [str(python), "-c", WORLD, str(Path(__file__).parent), str(start), str(prepared_dir)]
    processes = [
        subprocess.Popen(
            [*command, f"rank{rank}.pt"], env={**os.environ, **world, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        )
        for rank in range(2)
    ]
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
    alone, first, second = (torch.load(f"{name}.pt") for name in ("alone", "rank0", "rank1"))
    assert len(alone) > 60
    for name, tensor in alone.items():
        assert torch.equal(first[name], second[name])
        assert torch.allclose(tensor, first[name], atol=1e-6), name


@pytest.mark.parametrize("changes", [{}, {"pattern": "window", "window": 2}, {"pattern": "alternating", "window": 2}])
def test_in_causal_attention_nothing_depends_on_what_follows(changes: dict[str, Any]) -> None:
    """Every token has the vector that it has at the end of its text, with the pattern of the model; patterns that compress are refused."""
    from bertkit.model.attention_config import AttentionConfig

    heads = {"heads": ("masked_lm",), "with_pooler": False}
    model = small_model(attention=AttentionConfig(**changes), **heads).eval()
    ids = np.random.default_rng(0).integers(131, size=11)

    def hidden(lengths: list[int], size: int, **more: Any) -> torch.Tensor:
        batch = Batch(ids[:size], np.zeros(size, np.int64), np.array(lengths))
        return bertkit.outputs(model, batch, **more).last_hidden_state

    with torch.no_grad():
        whole = hidden([11], 11, is_causal=True)
        packed = hidden([7, 4], 11, is_causal=True)
        for size in (1, 4, 7):
            alone = hidden([size], size, is_causal=True)
            assert torch.allclose(whole[:size], alone, atol=1e-5)
            assert torch.allclose(packed[:size], alone, atol=1e-5)
        assert not torch.allclose(whole[:-1], hidden([11], 11)[:-1], atol=1e-3)
        if changes.get("pattern") != "window":  # the alternating pattern keeps its windows
            plain = small_model(attention=AttentionConfig(**{**changes, "pattern": "causal"}), **heads).eval()
            plain.load_state_dict(model.state_dict())
            model, reference = plain, whole
            assert torch.allclose(hidden([11], 11), reference, atol=1e-5) == (not changes)
        linformer = small_model(attention=AttentionConfig(pattern="linformer"), **heads)
        model = linformer
        with pytest.raises(InputError, match="linformer: compressed keys"):
            hidden([11], 11, is_causal=True)


def drawn(prepared_dir: Path, name: str) -> tuple[bertkit.Pretraining, Any]:
    """A job of an objective, and its first micro-batch as it was drawn."""
    data, made = bertkit.open_dataset(prepared_dir), objective(name)
    model = bertkit.new_model("tiny", data.tokenizer, objective=made, **type_for(name))
    job = bertkit.Pretraining(model, data, made, batch_sequences=16, max_seq_length=32)
    return job, job.examples.source("train", 0).micro_batches(0, 16, [(0, 16)])[0]


def test_masked_and_causal_tokens_are_predicted_one_place_before(prepared_dir: Path) -> None:
    job, batch = drawn(prepared_dir, "mixed_next_token")
    original, made = batch.original_ids, job.objective.inner  # type: ignore[attr-defined]
    parts = {name: rest for name, *rest in made.parts(made.prepare(batch, Moment(0, 1, 0, 1)))}  # type: ignore[attr-defined]
    texts = {tuple(ids) for ids in np.split(original, np.cumsum(batch.sequence_lengths)[:-1])}
    assert sum(len(part.sequence_lengths) for part, *_ in parts.values()) == len(texts) == 16
    for part, weight, places, labels in parts.values():
        assert weight == 0.5
        assert 0 < len(part.sequence_lengths) < 16
        assert {tuple(ids) for ids in np.split(part.original_ids, np.cumsum(part.sequence_lengths)[:-1])} < texts
        assert np.array_equal(part.original_ids[places + 1], labels)
    masked, causal = parts["masked"], parts["causal"]
    assert (masked[0].input_ids != masked[0].original_ids).any()
    assert len(causal[3]) == len(causal[0].input_ids) - len(causal[0].sequence_lengths)


def test_a_model_says_that_it_predicts_masked_tokens_one_place_before(prepared_dir: Path, tmp_path: Path) -> None:
    """Losses, scores and gaps are read there, in the model and in its copy on disk."""
    job, batch = drawn(prepared_dir, "mixed_next_token")
    assert job.objective.begin(job.model) is None
    places, labels = batch.masked_positions - 1, torch.from_numpy(batch.masked_labels)
    wanted = bertkit.outputs(job.model.eval(), batch, positions=places).logits["masked_lm"].log_softmax(1)
    by_label = wanted[torch.arange(len(labels)), labels]
    assert torch.allclose(bertkit.outputs(job.model, batch).logits["masked_lm"].log_softmax(1), wanted)
    read = load_packed(bertkit.export_model(job.model, job.tokenizer, tmp_path / "saved")).model
    for model in (job.model, read.eval()):
        scores = log_probabilities(model, batch, "masked_lm", batch.masked_labels)
        assert np.allclose(scores, by_label.detach(), atol=1e-5)
        assert np.array_equal(best_tokens(model, batch, 1).tokens[:, 0], wanted.argmax(1))
    length, places = int(batch.sequence_lengths[0]), batch.masked_positions
    first = Feature(0, batch.input_ids[:length].tolist(), batch.token_type_ids[:length].tolist())
    explained = run_copies(job.model, first, masked=places[places < length].tolist()).logits["masked_lm"]
    assert torch.allclose(explained.log_softmax(1), wanted[: len(explained)], atol=1e-5)


def test_shuffled_trigrams_are_put_in_order(prepared_dir: Path) -> None:
    """One in twenty trigrams without masks, [CLS] and [SEP], in any of its six orders; the model learns what stood where."""
    job, batch = drawn(prepared_dir, "word_order")
    original, facts = batch.original_ids, job.tokenizer.facts
    is_free = ~np.isin(original, [facts.cls, facts.sep])
    is_free[batch.masked_positions] = False
    num_trigrams = int((is_free[:-2] & is_free[1:-1] & is_free[2:]).sum())
    orders = set()
    for number in range(100):
        made = job.objective.prepare(batch, Moment(0, 1, number, 1))
        order, masks = made.targets["word_order"], made.targets["masked_lm"]
        assert order.positions is not None
        trigrams = order.positions.reshape(-1, 3)
        assert len(trigrams) == round(0.05 * num_trigrams) > 3
        assert is_free[trigrams].all()
        assert (np.diff(trigrams) == 1).all()
        assert np.array_equal(order.labels, original[order.positions])
        assert np.array_equal(masks.positions, batch.masked_positions)
        others = np.setdiff1d(np.arange(len(original)), order.positions)
        assert np.array_equal(made.input_ids[others], batch.input_ids[others])
        for places in trigrams:
            assert sorted(made.input_ids[places]) == sorted(original[places])
            if len({*original[places]}) == 3:
                orders.add(tuple(original[places].tolist().index(token) for token in made.input_ids[places]))
    assert len(orders) == 6

    out = bertkit.outputs(job.model.eval(), made, positions=np.arange(len(original)))
    wanted = {}
    for name, target in (("mlm", masks), ("word_order", order)):
        logits, labels = out.logits["masked_lm"][target.positions], torch.from_numpy(target.labels)
        wanted[name] = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
    terms = job.objective.losses(job.model, made, "fp32")
    assert {name: term.sum.item() for name, term in terms.items()} == pytest.approx(
        {name: loss.item() for name, loss in wanted.items()}, rel=1e-5
    )
    weights = [*job.model.parameters()]
    found = torch.autograd.grad(terms["mlm"].sum + terms["word_order"].sum, weights)
    for own, other in zip(found, torch.autograd.grad(wanted["mlm"] + wanted["word_order"], weights), strict=True):
        assert torch.allclose(own, other, rtol=1e-4, atol=1e-4)


def test_pairs_become_neighbours(prepared_dir: Path) -> None:
    job, batch = drawn(prepared_dir, "neighbours")
    made = job.objective.prepare(batch, Moment(0, 1, 0, 1))
    cls = job.tokenizer.facts.cls
    ends, original = np.cumsum(batch.sequence_lengths), batch.original_ids
    segments = np.split(made.input_ids, np.cumsum(made.sequence_lengths)[:-1])
    for pair, first, second in zip(np.split(original, ends[:-1]), segments[::2], segments[1::2], strict=True):
        assert first[0] == second[0] == cls
        assert np.array_equal(np.concatenate([first, second[1:]]), pair)
    follows = batch.targets["next_sentence"].labels == 0
    assert made.targets["neighbours"].labels.tolist() == follows.tolist()
    assert job.objective.counts(made) == {"neighbours": 2 * follows.sum()}


def test_the_discriminator_learns_from_samples_of_the_generator(prepared_dir: Path) -> None:
    """They share the embeddings; both losses fall, and a gap that is filled with the original is not replaced."""
    job, batch = drawn(prepared_dir, "replaced_tokens")
    torch.manual_seed(1)  # as `fit` does
    beside = job.objective.begin(job.model)
    assert beside is not None
    shared = beside.generator.bert.embeddings.token.weight  # type: ignore[union-attr]
    assert shared is job.model.bert.embeddings.token.weight
    terms = job.objective.losses(job.model, dataclasses.replace(batch), "fp32")
    assert terms["generator"].count == len(batch.masked_labels)
    assert terms["generator"].sum.item() / len(batch.masked_labels) == pytest.approx(
        np.log(job.model.config.vocab_size), rel=0.15
    )
    reports = list(bertkit.fit(job, steps=30, learning_rate=3e-3))
    first, last = reports[0].losses, reports[-1].losses
    assert last["generator"] < first["generator"] - 0.3
    assert last["replaced"] < first["replaced"] * 0.8
    measured = job.evaluate()
    assert {*measured} == {"generator_loss", "generator_accuracy", "replaced_loss", "replaced_accuracy"}
    assert measured == job.evaluate()


def test_they_export_as_usual(prepared_dir: Path, start: Path) -> None:
    """A mixed model and one of word order are BERTs, a discriminator an ELECTRA with its head; what embeds texts is one for sentence-transformers, with the same vectors."""
    for name in PRETRAINING:
        assert run([*words_of(name, start, prepared_dir), f"output_dir={name}"]) == 0
    assert run(["export", "model_dir=replaced_tokens", "output_dir=discriminator"]) == 0
    certificate = json.loads(Path("discriminator/parity.json").read_text())
    assert (certificate["architecture"], certificate["within_tolerance"]) == ("ElectraForPreTraining", True)
    discriminator = transformers.AutoModelForPreTraining.from_pretrained("discriminator")
    ids = torch.tensor([[2, 9, 8, 7, 3]])
    ours = bertkit.load_model("replaced_tokens")(ids).logits["replaced_token"]
    assert torch.allclose(discriminator(ids).logits, ours[..., 0], atol=1e-5)
    for name in ("mixed_next_token", "word_order"):
        assert run(["export", f"model_dir={name}", "head=masked_lm", f"output_dir={name}-lm"]) == 0
        certificate = json.loads(Path(f"{name}-lm/parity.json").read_text())
        assert certificate["architecture"] == "BertForMaskedLM"
        assert certificate["within_tolerance"]
        assert ("one place before it" in Path(f"{name}-lm/README.md").read_text()) == (name == "mixed_next_token")
    assert (
        run(["export", "model_dir=neighbours", "head=encoder", "sentence_transformers=true", "output_dir=vectors"]) == 0
    )
    from sentence_transformers import SentenceTransformer

    texts = ["kam tem", "rum lon kan"]
    theirs = SentenceTransformer("vectors", device="cpu").encode(texts)
    assert np.allclose(bertkit.load_embedder("vectors")(texts), theirs, atol=1e-5)


def test_a_model_of_a_type_without_the_head_is_refused_before_it_is_trained(
    start: Path, prepared_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word for word in words_of("replaced_tokens", start, prepared_dir) if not word.startswith("model.family")]
    assert run([*words, "output_dir=refused"]) == 2
    message = "the heads replaced_token: transformers has no such class of this model's type; models of the type electra have one"
    assert message in capsys.readouterr().err
    assert not Path("refused").exists()


def test_a_student_learns_the_logits_and_the_layers_of_its_teacher(start: Path, teacher: Path) -> None:
    student = bertkit.Finetuning(
        start,
        train=ROWS,
        dev=ROWS[:10],
        objective=objective("distillation"),
        batch={"sequences": 8},
        seed=1,
        **{"task.max_seq_length": 16},
    )
    reports = list(bertkit.fit(student, steps=40, learning_rate=1e-2))
    for name in ("logits", "layers"):
        assert reports[-1].losses[name] < reports[0].losses[name] / 2
    assert reports[-1].accuracies.keys() == {"sequence"}


@pytest.mark.parametrize("name", ["freelb", "smart"])
def test_adversarial_objectives_are_trained_by_the_command(start: Path, prepared_dir: Path, name: str) -> None:
    """Whose estimate of the memory runs them, too: they compute gradients in their forward passes."""
    words = [word for word in words_of(name, start, prepared_dir) if not word.startswith("plugins=")]
    assert run([*words, "plugins=[adversarial]", "output_dir=run"]) == 0


def test_adversarial_objectives_go_uphill(start: Path) -> None:
    """Without dropout: a pass alone, from no start, has the plain loss; each further pass has a larger one; and a model is trained."""
    import adversarial

    job = bertkit.Finetuning(start, train=ROWS, dev=ROWS[:10], batch={"sequences": 8}, **{"task.max_seq_length": 16})
    batch, model = job.data.batches.take(np.arange(8)), job.model.eval()
    plain = Objective().losses(model, batch)["sequence"].sum.item()
    sums = []
    for passes in (1, 2, 3):
        torch.manual_seed(0)
        made = adversarial.FreeLB(passes=passes, start=0.0, step=0.3)
        sums.append(passes * made.losses(model, batch, "fp32")["sequence"].sum.item())
    assert sums[0] == pytest.approx(plain, rel=1e-6)
    assert plain < sums[1] - sums[0] < sums[2] - sums[1]

    smart = adversarial.Smart(weight=3.0, step=0.1)
    found = []
    for step in (0.0, 0.1):
        smart.step = step
        torch.manual_seed(0)
        terms = smart.losses(model, batch, "fp32")
        found.append(terms["smoothness"].sum.item())
        assert terms.keys() == smart.counts(batch).keys()
        assert terms["sequence"].sum.item() == pytest.approx(plain, rel=1e-6)
    assert 0 <= found[0] < found[1] / 1000
    for made in (adversarial.FreeLB(step=0.01, start=0.01), adversarial.Smart()):  # tiny vectors, so small steps
        trained = bertkit.Finetuning(
            start, train=ROWS, dev=ROWS[:10], objective=made, batch={"sequences": 8}, **{"task.max_seq_length": 16}
        )
        first, *_, last = bertkit.fit(trained, steps=40, learning_rate=3e-3)
        assert last.losses["sequence"] < first.losses["sequence"] - 0.2


def test_predictions_are_compared_by_what_they_are(start: Path) -> None:
    """R-Drop and SMART compare numbers by their squares, which a softmax of one logit cannot; several labels of a text are refused, also by a teacher."""
    import adversarial
    import my_objectives

    length = {"task.max_seq_length": 16}
    numbers = [{"text": row["text"], "label": n / 7} for n, row in enumerate(ROWS)]
    job = bertkit.Finetuning(
        start, train=numbers, dev=numbers[:10], task="regression", batch={"sequences": 8}, **length
    )
    batch, model = job.data.batches.take(np.arange(8)), job.model.train()
    for made, name in ((my_objectives.RDrop(), "difference"), (adversarial.Smart(step=0.1), "smoothness")):
        assert made.losses(model, batch, "fp32")[name].sum.item() > 0
    several = [{"text": row["text"], "label": ["a", "b"][: 1 + n % 2]} for n, row in enumerate(ROWS)]
    job = bertkit.Finetuning(
        start,
        train=several,
        dev=several[:10],
        task="sequence",
        batch={"sequences": 8},
        **length,
        **{"task.multi_label": True},
    )
    batch, model = job.data.batches.take(np.arange(8)), job.model.train()
    for made in (my_objectives.RDrop(), adversarial.Smart()):
        with pytest.raises(ValueError, match="head sequence: only a class of each text or token, or a number"):
            made.losses(model, batch, "fp32")
