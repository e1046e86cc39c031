"""Plug-ins from outside of the repository: the guide's module, and an installed package with an entry point."""

import importlib
import json
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import TINY_FINETUNE, TINY_PRETRAIN, Capsys, options_so_far, output_of, refused, small_config
from safetensors.torch import load_file
from torch import nn

import bertkit
from bertkit.base import memory, plugins
from bertkit.base.batch import Batch, Target
from bertkit.base.errors import InputError
from bertkit.base.typed_settings import build
from bertkit.cli import run
from bertkit.data.batches.masking import mask_tokens
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.data.data_config import MaskingConfig
from bertkit.kernels.layout import Layout
from bertkit.model.attention_config import AttentionConfig
from bertkit.model.bert_config import HeadConfig
from bertkit.model.heads import BertWithHeads
from bertkit.model.patterns import SlidingWindow
from bertkit.model.slots import Pattern, Positions
from bertkit.tasks.task_config import KINDS

GUIDE = Path(__file__).resolve().parents[1] / "recipes" / "extend"
PACKAGE = """
import torch
from torch import nn
import bertkit


@bertkit.schedule("valley")
def valley(step, steps, warmup_steps, *, floor: float = 0.25):
    return floor + (1 - floor) * abs(1 - 2 * step / steps)


@bertkit.optimizer("sgd")
def sgd(groups, config, *, momentum: float = 0.5):
    return torch.optim.SGD(groups, lr=config.peak, momentum=momentum)


@bertkit.score("cosine")
def cosine(query, key, *, temperature: float = 0.1):
    query, key = nn.functional.normalize(query, dim=-1), nn.functional.normalize(key, dim=-1)
    return query @ key.transpose(-1, -2) / temperature


@bertkit.positions("bias")
class Bias(nn.Module):
    def __init__(self, config, *, reach: int = 5):
        super().__init__()
        self.reach, self.table = reach, nn.Embedding(2 * reach + 1, config.num_attention_heads)

    def scores(self, query, distances):
        return self.table(distances.clamp(-self.reach, self.reach) + self.reach).permute(0, 3, 1, 2)


@bertkit.head("same")
class Same(nn.Module):
    is_exported = True

    def __init__(self, config, num_outputs):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, num_outputs)

    def forward(self, vectors):
        return self.dense(vectors)
"""
OTHERS = (
    "optimizer=sgd", "optimizer.options.momentum=0.75", "schedule=valley", "attention.score=cosine",
    "attention.positions=bias", "attention.positions_options.reach=3",
)  # fmt: skip


@pytest.fixture(autouse=True)
def unloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the guide's module, as a user's working directory, and no plug-in known yet."""
    for name in ("my_plugins", "ratings"):
        shutil.copy(GUIDE / f"{name}.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    for module in KINDS.values():  # lest they register in the copy alone
        importlib.import_module(module)
    built_in = {key: made for key, made in options_so_far().items() if not plugins.is_plugin(*key)}
    for name, empty in (("_options", built_in), ("_modules", set()), ("_used", {})):
        monkeypatch.setattr(plugins, name, empty)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv(plugins.MODULES, "")
    plugins._load_once.cache_clear()
    for name in ("my_plugins", "ratings", "package_of_plugins"):
        sys.modules.pop(name, None)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package: a module, and metadata with its entry point."""
    place = tmp_path / "site"
    (place / "package_of_plugins-1.0.dist-info").mkdir(parents=True)
    (place / "package_of_plugins.py").write_text(PACKAGE)
    (place / "package_of_plugins-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: package-of-plugins\nVersion: 1.0\n"
    )
    (place / "package_of_plugins-1.0.dist-info" / "entry_points.txt").write_text(
        "[bertkit]\nmine = package_of_plugins\n"
    )
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.setenv("PYTHONPATH", str(place))
    return place


def pretrain(tiny_runs: Path, output: str, *more: str) -> int:
    return run(["pretrain", f"data_dir={tiny_runs / 'data'}", f"output_dir={output}", *TINY_PRETRAIN, *more])


def finetune(tiny_runs: Path, output: str, *more: str) -> int:
    places = f"model_dir={tiny_runs / 'pre'}", f"data_dir={tiny_runs / 'task'}", f"output_dir={output}"
    return run(["finetune", *places, *TINY_FINETUNE, *more])


def test_plug_in_masking_trains_and_is_saved(tiny_runs: Path, capsys: Capsys) -> None:
    chosen = "plugins=[my_plugins]", "masking=block", "masking.options.length=4"
    assert pretrain(tiny_runs, "run", *chosen) == 0
    saved = Path("run/config.yaml").read_text()
    assert "kind: block\n  options:\n    length: 4" in saved
    assert "plugins:\n- my_plugins" in saved
    assert run(["pretrain", "--config", "run/config.yaml", "output_dir=again"]) == 0
    assert Path("again/metrics.jsonl").read_text().count("\n") == 2
    refused(pretrain(tiny_runs, "run", *chosen[:2]), "masking.options.length", capsys)


def test_what_a_masking_returns(tokenizer: Tokenizer) -> None:
    facts = tokenizer.facts
    ids = np.array([facts.cls, 7, 8, 9, facts.sep, facts.cls, 10, 11, facts.sep])
    policy = MaskingConfig(0.5, 1.0, 0.0, kind="mine")
    places: list[int] = [2]
    bertkit.masking("mine")(lambda ids, special, rng, policy: places)  # type: ignore[attr-defined]

    def masked() -> list[list[int]]:
        return [x.tolist() for x in mask_tokens(ids, np.array([5, 4]), np.array([1, 2], np.uint64), policy, facts)]

    assert masked()[1:] == [[2, 7], [8, 11]]
    assert masked()[0] == [facts.cls, 7, facts.mask, 9, facts.sep, facts.cls, 10, facts.mask, facts.sep]
    places[0] = 0
    for wrong in ([0], [5], [2.5], None, "text", ([1, 2], [3]), [[1], [2, 3]]):
        plugins._options["masking", "mine"] = lambda ids, special, rng, policy, wrong=wrong: wrong  # type: ignore[misc]
        with pytest.raises(InputError, match=rf"test_plugins.py:\d+\) returned {re.escape(repr(wrong))}; expected"):
            masked()
    plugins._options["masking", "mine"] = lambda ids, special, rng, policy: (ids + 131, np.where(special, -100, ids))
    with pytest.raises(InputError, match="returned"):
        masked()
    plugins._options["masking", "mine"] = lambda ids, special, rng, policy: (
        [1] if len(ids) < 5 else (ids, np.where(special, -100, ids))
    )
    with pytest.raises(InputError, match="the one or the other"):
        masked()
    plugins._options["masking", "mine"] = lambda ids, special, rng, policy: (ids + 1, np.where(special, -100, ids))
    assert masked() == [(ids + 1).tolist(), [1, 2, 3, 6, 7], [7, 8, 9, 10, 11]]


def test_a_head_and_a_metric(tiny_runs: Path, capsys: Capsys) -> None:
    chosen = "plugins=[my_plugins]", "head=two_layers", "head.options.hidden=5"
    assert finetune(tiny_runs, "run", *chosen, "task.metrics=[accuracy,kappa]", "task.best_metric=kappa") == 0
    assert "kappa" in json.loads(Path("run/eval.json").read_text())
    assert load_file("run/model/model.safetensors")["heads.sequence.inner.weight"].shape == (5, 26)
    capsys.readouterr()
    predict = ["predict", "model_dir=run", "text=kan lon"]
    assert run([*predict, "plugins=[my_plugins]"]) == 0
    assert json.loads(capsys.readouterr().out)["label"] in "ab"
    refused(run(["export", "model_dir=run", "head=task", "output_dir=hf"]), "head.kind=two_layers", capsys)
    assert run(["export", "model_dir=run", "head=encoder", "output_dir=hf"]) == 0
    del plugins._options["head", "two_layers"]
    refused(run(predict), "head.kind='two_layers'", capsys)


def test_a_head_with_logits_of_another_kind(tiny_runs: Path, capsys: Capsys) -> None:
    """One file of the guide: its head has a logit less than labels, its loss is by steps, and every command knows the model."""
    chosen = ["plugins=[ratings]", "task.kind=ratings", "task.labels=[low,middle,high]"]
    rows = [
        {"text": f"{['kam', 'rum', 'tem'][n % 3]} lon", "label": ["low", "middle", "high"][n % 3]} for n in range(30)
    ]
    Path("ratings.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    files = [f"task.files.{split}=ratings.jsonl" for split in ("train", "dev")]
    words = ["finetune", *TINY_FINETUNE, "task=sequence", *files, f"model_dir={tiny_runs / 'pre'}"]
    assert run([*words, *chosen, "output_dir=run"]) == 0
    weights = load_file("run/model/model.safetensors")
    assert weights["heads.ratings.dense.weight"].shape == (2, 26)
    assert json.loads(Path("run/model/config.json").read_text())["model_type"] == "bertkit"
    capsys.readouterr()
    texts = [row["text"] for row in rows]
    predicted = bertkit.predict(model_dir="run", input=texts)
    encoded = bertkit.load_tokenizer("run")(texts[:3], padding=True, return_tensors="pt")
    logits = bertkit.load_model("run")(**encoded)
    above = 1 / (1 + np.exp(-logits.logits["ratings"].detach().double().numpy()))
    for row, steps in zip(predicted, above, strict=False):
        second = min(steps)
        expected = {"low": 1 - steps[0], "middle": steps[0] - second, "high": second}
        assert row["probabilities"] == pytest.approx(expected, abs=1e-6)
    assert run(["evaluate", "model_dir=run", "task.files.dev=ratings.jsonl"]) == 0
    accuracy = np.mean([row["label"] == own["label"] for row, own in zip(predicted, rows, strict=True)])
    assert json.loads(capsys.readouterr().out)["accuracy"] == pytest.approx(accuracy)
    assert run(["view", "model_dir=run", "text=kam lon", "output=page.html"]) == 0
    assert "plug-in's, whose logits" in capsys.readouterr().out
    refused(run(["export", "run", "hf"]), "transformers 5 has no BERT with head=ratings", capsys)
    del plugins._options["model_head", "ratings"]
    refused(run(["predict", "model_dir=run", "text=kam"]), "heads=ratings: a plug-in that is not loaded", capsys)


def test_the_loss_of_ratings_is_that_of_the_steps() -> None:
    """In numpy, step by step: a label above a step has 1 there; the sum of a text is divided by the number of texts."""
    plugins.load(["ratings"])
    logits, labels = np.random.default_rng(0).normal(size=(7, 3)), np.array([0, 3, 1, 2, 2, 0, 3])
    expected = 0.0
    for row, label in zip(logits, labels, strict=True):
        for step, logit in enumerate(row):
            expected += np.log1p(np.exp(-logit if label > step else logit))
    for weights in (None, np.full(4, 10.0)):  # class_weights= of a run
        batch = Batch(labels, labels, labels, {"ratings": Target(labels, weights=weights)})
        term = bertkit.head_losses(None, batch, {"ratings": torch.from_numpy(logits)})["ratings"]
        assert term.count == (7 if weights is None else 70)
        assert term.sum.item() / term.count == pytest.approx(expected / 7)
    term = bertkit.head_losses(
        None, Batch(labels, labels, labels, {"ratings": Target(labels)}), {"ratings": torch.from_numpy(logits)}
    )["ratings"]
    assert int(term.correct) == sum((row > 0).sum() == label for row, label in zip(logits, labels, strict=True))


def test_plug_in_package_trains_in_one_and_two_processes(tiny_runs: Path, package: Path, python: Path) -> None:
    """Its options are used without `plugins=`, by one process, by two, and after a stop in the middle."""
    assert pretrain(tiny_runs, "one", *OTHERS, "steps=4", "checkpoint.every_steps=1") == 0
    rows = [json.loads(line) for line in Path("one/metrics.jsonl").read_text().splitlines()]
    assert [row["learning_rate"] for row in rows] == pytest.approx([1e-4, 0.625e-4, 0.25e-4, 0.625e-4])
    assert run(["evaluate", "model_dir=one", f"data_dir={tiny_runs / 'data'}", "segments.max_seq_length=32"]) == 0

    assert pretrain(tiny_runs, "two", *OTHERS, "steps=4", "checkpoint.every_steps=1") == 0
    for step in ("step-00000003", "step-00000004"):
        shutil.rmtree(f"two/checkpoints/{step}")
    for left in ("two/model", "two/eval.json", "two/report.html"):
        shutil.rmtree(left) if Path(left).is_dir() else Path(left).unlink()
    assert pretrain(tiny_runs, "two", *OTHERS, "steps=4", "checkpoint.every_steps=1") == 0
    name = "model/model.safetensors"
    assert (Path("two") / name).read_bytes() == (Path("one") / name).read_bytes()

    command = [python, "-m", "bertkit", "pretrain", f"data_dir={tiny_runs / 'data'}", "output_dir=both"]
    output_of([*command, *TINY_PRETRAIN, *OTHERS, "steps=4", "launch.num_processes=2"])
    both, one = (load_file(Path(folder) / name) for folder in ("both", "one"))
    assert all(torch.allclose(both[key], one[key], atol=1e-6) for key in one)
    assert set(one) == set(both)


def test_a_head_that_is_exported(tiny_runs: Path, package: Path) -> None:
    assert finetune(tiny_runs, "run", "head=same") == 0
    assert json.loads(Path("run/model/config.json").read_text())["model_type"] == "bert"
    assert run(["export", "model_dir=run", "head=task", "output_dir=hf"]) == 0


def test_help_lists_plug_ins_with_their_settings(package: Path, capsys: Capsys) -> None:
    assert run(["pretrain", "plugins=[my_plugins]", "--help"]) == 0
    shown = capsys.readouterr().out
    for expected in ("block", "masking.options.length: 3", "sgd", "attention.score_options.temperature: 0.1"):
        assert expected in shown
    assert "two_layers" not in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("masking=block",), "masking=block"),
        (("plugins=[my_plugins]", "masking=blok"), "'block'"),
        (("plugins=[my_plugins]", "masking=block", "masking.options.lenght=4"), "'length'"),
        (("plugins=[my_plugins]", "masking=block", "masking.options.length=four"), "masking.options.length"),
        (("masking.options.length=4",), "unknown key 'masking.options.length'"),
        (("plugins=[nowhere]",), "plugins=[nowhere]"),
        (("attention.score=block",), "attention.score='block'"),
        (("optimizer.name=block",), "optimizer.name='block'"),
    ],
)
def test_plug_in_mistakes_are_refused_before_training(
    words: tuple[str, ...], message: str, tiny_runs: Path, capsys: Capsys
) -> None:
    refused(pretrain(tiny_runs, "run", *words), message, capsys)
    assert not Path("run").exists()


def test_two_plug_ins_of_one_name(tmp_path: Path, capsys: Capsys, tiny_runs: Path) -> None:
    (tmp_path / "mine.py").write_text("import bertkit\nbertkit.masking('block')(print)\n")
    refused(pretrain(tiny_runs, "run", "plugins=[my_plugins,mine]", "masking=block"), "my_plugins", capsys)


def test_options_need_types_and_defaults() -> None:
    bertkit.schedule("bare")(lambda step, steps, warmup, *, floor: floor)  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="floor"):
        plugins.options_of("schedule", "bare")


def test_positions_that_rotate_or_embed() -> None:
    class Doubling(nn.Module):
        def __init__(self, config: object) -> None:
            super().__init__()

        def embed(self, hidden: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
            return hidden + position_ids[:, None]

        def rotate(self, vectors: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
            return vectors * 2

    bertkit.positions("doubling")(Doubling)  # type: ignore[attr-defined]
    config = small_config(attention=AttentionConfig(positions="doubling"))  # type: ignore[arg-type]
    model = BertWithHeads(config, ("masked_lm",), with_pooler=False).eval()
    assert not list(model.bert.embeddings.positions.parameters())
    layer = model.bert.encoder.layers[0].attention.slots
    query = torch.ones(3, 2, 13)
    layout = Layout.from_lengths(torch.tensor([3]))
    assert [out.unique().tolist() for out in layer.transform(query, query, layout.position_ids)] == [[2.0], [2.0]]


def test_plug_in_pattern_masks_attention() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Strided(Pattern):
        stride: int = 2
        is_masked = True

        def allowed(self, length: int) -> torch.Tensor:
            places = torch.arange(length)
            return (places - places[:, None]) % self.stride == 0

    bertkit.pattern("strided")(Strided)  # type: ignore[attr-defined]
    attention = build(AttentionConfig, {"pattern": "strided", "pattern_options": {"stride": 3}})
    model = BertWithHeads(small_config(attention=attention)).eval()
    ids, layout = torch.arange(5, 17), Layout.from_lengths(torch.tensor([7, 5]))
    weights = model(ids, torch.zeros_like(ids), layout, output_attentions=True).attentions[0]
    assert torch.equal(weights[0, 0] > 0, Strided(stride=3).allowed(7))
    assert model.bert.encoder.layers[0].attention.slots.has_scores is False


def test_positions_and_patterns_that_alternate() -> None:
    """A layer's attention is what its number makes of the option: here other angles, and every second layer looks near."""

    class Turning(Positions):
        def __init__(self, config: object, *, base: int = 10) -> None:
            super().__init__()
            self.base = base

        def of_layer(self, layer: int) -> Positions:
            return Turning(None, base=self.base + layer)

        def rotate(self, vectors: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
            return vectors * self.base

    @dataclass(frozen=True, kw_only=True)
    class Alternating(Pattern):
        near: int = 1

        def of_layer(self, layer: int) -> Pattern:
            return SlidingWindow(window=self.near) if layer % 2 else Pattern()

    bertkit.positions("turning")(Turning)  # type: ignore[attr-defined]
    bertkit.pattern("by_turns")(Alternating)  # type: ignore[attr-defined]
    mapping = {"positions": "turning", "positions_options": {"base": 3}, "pattern": "by_turns"}
    config = small_config(attention=build(AttentionConfig, mapping))  # type: ignore[arg-type]
    model = BertWithHeads(config, ("masked_lm",), with_pooler=False).eval()
    ids, layout = torch.arange(5, 17), Layout.from_lengths(torch.tensor([7, 5]))
    query = torch.ones(12, 2, 13)
    for number, (layer, weights) in enumerate(
        zip(
            model.bert.encoder.layers,
            model(ids, torch.zeros_like(ids), layout, output_attentions=True).attentions or (),
            strict=True,
        )
    ):
        turned, _ = layer.attention.slots.transform(query, query, layout.position_ids)
        assert turned.unique().tolist() == [3 + number]
        allowed = SlidingWindow(window=1).allowed(7) if number % 2 else torch.ones(7, 7).bool()
        assert torch.equal(weights[0, 0] > 0, allowed)
    assert number == 2


FEED_FORWARD = """
@bertkit.feed_forward("doubled")
class Doubled(nn.Module):
    def __init__(self, config, *, factor: int = 2):
        super().__init__()
        self.factor, self.inner = factor, nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden):
        return self.factor * self.inner(hidden){part}
"""


def test_a_feed_forward(tiny_runs: Path, tmp_path: Path, capsys: Capsys) -> None:
    chosen = "plugins=[doubling]", "feed_forward=doubled", "feed_forward.options.factor=3"
    (tmp_path / "doubling.py").write_text("import bertkit\nfrom torch import nn\n" + FEED_FORWARD.format(part=""))
    assert pretrain(tiny_runs, "run", *chosen) == 0
    content = json.loads(Path("run/model/config.json").read_text())
    assert (content["model_type"], content["feed_forward"]) == (
        "bertkit",
        {"kind": "doubled", "options": {"factor": 3}},
    )
    names = [name for name in load_file("run/model/model.safetensors") if "layers.0.feed_forward." in name]
    assert sorted(name.partition("feed_forward.")[2] for name in names) == ["inner.bias", "inner.weight"]
    again = "plugins=[doubling]", "model_dir=run", f"data_dir={tiny_runs / 'task'}", "output_dir=task"
    assert run(["finetune", *again, *TINY_FINETUNE]) == 0
    capsys.readouterr()
    refused(run(["export", "model_dir=run", "output_dir=hf"]), "feed_forward.kind=doubled", capsys)
    del plugins._options["feed_forward", "doubled"]
    refused(run(["predict", "model_dir=run", "text=kan lon"]), "feed_forward.kind='doubled'", capsys)


def test_a_feed_forward_of_another_size(tiny_runs: Path, tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "narrowing.py").write_text(
        "import bertkit\nfrom torch import nn\n" + FEED_FORWARD.format(part="[:, 1:]")
    )
    code = pretrain(tiny_runs, "run", "plugins=[narrowing]", "feed_forward=doubled")
    refused(code, "narrowing.py:4) returned torch.Size", capsys)


ENCODER = """
import torch
from torch import nn
import bertkit
from bertkit.model.bert import Encoder, EncoderLayer


class Gated(EncoderLayer):
    def __init__(self, config, *others):
        super().__init__(config, *others)
        self.gate = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, hidden, geometry, attentions=None, rows=None):
        return super().forward(hidden, geometry, attentions) * self.gate(hidden).sigmoid()


@bertkit.encoder("gated")
class GatedEncoder(Encoder):
    layer_class = Gated

    def __init__(self, config):
        super().__init__(config)
        self.scales = nn.ParameterList(torch.full([], 2.0) for _ in self.layers)

    def forward(self, hidden, layout, output_hidden_states=False, attentions=None, wanted=None):
        assert wanted is None
        states = super().forward(hidden, layout, output_hidden_states, attentions)
        return [*states[:-1], states[-1] * sum(self.scales)]


@bertkit.encoder("bare")
def bare(config):
    return nn.Identity()
"""


def test_an_encoder(tiny_runs: Path, tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "gating.py").write_text(ENCODER)
    assert (
        pretrain(tiny_runs, "run", "plugins=[gating]", "model.encoder=gated", "optimizer.peak_learning_rate=1e-9") == 0
    )
    content = json.loads(Path("run/model/config.json").read_text())
    assert (content["model_type"], content["encoder"]) == ("bertkit", "gated")
    weights = load_file("run/model/model.safetensors")
    assert {"bert.encoder.layers.0.gate.weight", "bert.encoder.scales.0"} <= {*weights}
    torch.testing.assert_close(weights["bert.encoder.scales.0"], torch.tensor(2.0))
    assert bertkit.load_model("run").model.bert.encoder.layers[0].has_plugin  # torch.compile may break its graph
    again = "plugins=[gating]", "model_dir=run", f"data_dir={tiny_runs / 'task'}", "output_dir=task"
    capsys.readouterr()
    assert run(["finetune", *again, *TINY_FINETUNE]) == 0
    assert "initialised 2 new tensors" in capsys.readouterr().out
    assert run(["predict", "plugins=[gating]", "model_dir=task", "text=kan lon"]) == 0
    refused(run(["export", "model_dir=run", "output_dir=hf"]), "encoder=gated", capsys)
    refused(
        pretrain(tiny_runs, "bare", "plugins=[gating]", "model.encoder=bare"),
        "subclass of bertkit.model.bert.Encoder",
        capsys,
    )
    refused(pretrain(tiny_runs, "bare", "model.encoder=nowhere"), "model.encoder='nowhere'", capsys)


def test_an_option_without_a_name_has_that_of_its_function() -> None:
    @bertkit.schedule
    def halving(step: int, steps: int, warmup_steps: float) -> float:
        return 0.5**step

    @bertkit.feed_forward()
    class Nothing(nn.Identity):
        def __init__(self, config: object) -> None:
            super().__init__()

    assert plugins.get("schedule", "halving") is halving
    assert plugins.get("feed_forward", "Nothing") is Nothing
    with pytest.raises(InputError, match=r"head 3: expected a name; write @bertkit\.head\('name'\)"):
        bertkit.head(3)  # type: ignore[call-overload]


def test_the_name_of_a_built_in_option() -> None:
    assert plugins.names_of("schedule") == ["polynomial", "inverse", "cosine", "wsd"]
    with pytest.raises(InputError, match=r"schedule 'inverse': defined in bertkit\.train\.schedule and in "):
        bertkit.schedule("inverse")(lambda step, steps, warmup_steps: 1.0)  # type: ignore[attr-defined]


def test_options_that_are_no_mapping() -> None:
    """As in the config.json of a model from elsewhere."""
    for kind in ("linear", "nowhere"):
        with pytest.raises(InputError, match=r"options=3|kind='nowhere'"):
            build(HeadConfig, {"kind": kind, "options": 3})


HEAD = """
@bertkit.head("mine")
class Mine(nn.Module):
    def __init__(self, config, num_outputs):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, num_outputs{more})

    def forward(self, vectors):
        return self.dense(vectors{part})
"""
METRIC = '@bertkit.metric("mine")\ndef mine(predictions, references):\n    {body}\n'
MASKING = '@bertkit.masking("mine")\ndef mine(ids, special, rng, policy):\n    {body}\n'


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        (MASKING.format(body="return []"), ("masking=mine",), "mine.py:4) returned []; expected at least one position"),
        (MASKING.format(body="return {}[policy.kind]"), ("masking=mine",), "mine.py:6, in mine: KeyError: 'mine'; the plug-in"),
        (MASKING.format(body="open('nowhere.txt')"), ("masking=mine",), "mine.py:6, in mine: FileNotFoundError"),
        (MASKING.format(body="raise SystemExit(0)"), ("masking=mine",), "mine.py:6, in mine: SystemExit: 0"),
        (MASKING.format(body="raise GeneratorExit"), ("masking=mine",), "mine.py:6, in mine: GeneratorExit"),
        (MASKING.format(body="raise StopIteration"), ("masking=mine",), "mine.py:6, in mine: StopIteration"),
        ("raise GeneratorExit", (), "mine.py:4, in <module>: GeneratorExit"),
        ("raise SystemExit(0)", (), "plugins=[mine]: cannot be imported (/"),
        ("raise SystemExit(0)", (), "mine.py:4, in <module>: SystemExit: 0); correct"),
        ("", (), "plugins=[mine]: has no effect, since mine adds no plug-in"),
        ('@bertkit.masking("mine")\ndef mine(ids): ...', ("masking=mine",), "mine.py:4) takes (ids); expected (ids, special, rng"),
        ("@bertkit.masking(3)\ndef mine(ids, special, rng, policy): ...", (), "write @bertkit.masking('name')"),
        (
            '@bertkit.masking("mine")\ndef mine(ids, special, rng, policy, *, words: list = []): ...',
            ("masking=mine",),
            "mine.py:4): option words needs a plain type",
        ),
        ('@bertkit.schedule("mine")\ndef mine(step, steps, warmup): ...', ("schedule=mine",), "mine.py:4) returned None"),
        ('@bertkit.optimizer("mine")\ndef mine(groups, config): ...', ("optimizer=mine",), "mine.py:4) returned None"),
        ('@bertkit.score("mine")\ndef mine(query, key): return key', ("attention.score=mine",), "mine.py:4) returned torch.Size"),
        (
            '@bertkit.positions("mine")\nclass Mine(nn.Module):\n    def __init__(self, config): super().__init__()',
            ("attention.positions=mine",),
            "mine.py:4) returned <class 'mine.Mine'>; expected a class with a method",
        ),
        (METRIC.format(body="return 'good'"), ("task.metrics=[accuracy,mine]",), "mine.py:4) returned 'good'; expected a finite number"),
        (METRIC.format(body="return 1 / 0"), ("task.metrics=[accuracy,mine]",), "mine.py:6, in mine: ZeroDivisionError"),
        (HEAD.format(more=" + 1", part=""), ("head=mine",), "mine.py:5) returned torch.Size([1, 3]); expected a tensor of shape (1, 2)"),
        (HEAD.format(more="", part="[:, 1:]"), ("head=mine",), "mine.py:12, in Mine.forward: RuntimeError"),
        (HEAD.format(more="", part=""), ("head=mine", "calibrate=true"), "calibrate=true: head.kind=mine has no last linear map"),
        # by the decorator's name in earlier versions
        ('@bertkit.shape("mine")\ndef mine(config, labels): ...', ("task.kind=mine",), "mine.py:4) returned None; expected a bertkit.tasks"),
    ],
)  # fmt: skip
def test_a_plug_ins_own_error_names_its_file_and_line(
    text: str, words: tuple[str, ...], message: str, tiny_runs: Path, tmp_path: Path, capsys: Capsys
) -> None:
    (tmp_path / "mine.py").write_text(f"import bertkit\nfrom torch import nn\n\n{text}\n")
    command = finetune if words and words[0].startswith(("head", "task")) else pretrain
    code = command(tiny_runs, "run", "plugins=[mine]", *words)
    sys.modules.pop("mine", None)
    refused(code, message, capsys)


def test_what_a_module_changes_for_all_is_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "rude.py").write_text(
        "import os, sys, bertkit\nbertkit.schedule('rude')(lambda step, steps, warmup_steps: 1.0)\nos.chdir('/')\nsys.stdout = None\n"
    )
    streams, folder = (sys.stdout, sys.stderr), Path.cwd()
    plugins.load(["rude"])
    assert (sys.stdout, sys.stderr, Path.cwd()) == (*streams, folder)
    sys.modules.pop("rude")


FORMATS = """
import bertkit
from bertkit.apps.retrieval.judging import PassageFormat
from bertkit.tasks.reading.writers import PredictionFormat, VectorFormat


@bertkit.prediction_format(".md")
class Labels(PredictionFormat):
    def put(self, rows):
        self.file.writelines(f"- {row['label']}\\n" for row in rows)


@bertkit.vector_format(".md")
class Sizes(VectorFormat):
    is_binary = True

    def put(self, texts, vectors):
        self.file.writelines(f"- {text}: {vectors.shape[1]}\\n".encode() for text in texts)

    def __exit__(self, *error):
        self.file.write(b"end")


@bertkit.passage_format(".md")
class Titles(PassageFormat):
    def put(self, ranking):
        self.file.write(f"- {ranking.question.text}: {len(ranking.row()['search'])} of {self.top_k}\\n")
"""


def test_output_formats_of_predict_embed_and_search(tiny_runs: Path, tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "formats.py").write_text(FORMATS)
    (tmp_path / "in.txt").write_text("kan lon ten\nmir rur ten\n")
    words = ["input=in.txt", "device=cpu", "output=out.md"]
    refused(
        run(["embed", f"model_dir={tiny_runs / 'pre'}", *words]),
        "expected a name that ends in .npy, .parquet, .jsonl, or -",
        capsys,
    )
    plugins.load(["formats"])
    assert run(["predict", f"model_dir={tiny_runs / 'fine'}", *words]) == 0
    predicted = [row["label"] for row in bertkit.predict(tiny_runs / "fine", ["kan lon ten", "mir rur ten"])]
    assert (tmp_path / "out.md").read_text() == f"- {predicted[0]}\n- {predicted[1]}\n"
    assert run(["embed", f"model_dir={tiny_runs / 'pre'}", *words, "overwrite=true"]) == 0
    assert (tmp_path / "out.md").read_text() == "- kan lon ten: 26\n- mir rur ten: 26\nend"
    assert run(["index", f"corpus.path={tiny_runs / 'corpus.txt'}", "output=library.db"]) == 0
    bertkit.search(index="library.db", input=["kan lon"], top_k=3, output="found.md")
    assert (tmp_path / "found.md").read_text() == "- kan lon: 3 of 3\n"


@pytest.mark.parametrize(
    ("value", "message"), [('[""]', "['']"), ("[my_plugins,x/y]", "['x/y']"), ("[os]", "[os]: has no effect")]
)
def test_plugins_that_name_no_module(value: str, message: str, tiny_runs: Path, capsys: Capsys) -> None:
    refused(pretrain(tiny_runs, "run", f"plugins={value}"), f"plugins={message}", capsys)


def test_unlocated_error_names_plug_ins_in_use(tiny_runs: Path, tmp_path: Path, capsys: Capsys) -> None:
    """Where no call shows whose error it is, the line names bertkit and the plug-ins in use."""
    body = 'torch.optim.SGD([{"params": group["params"]} for group in groups])'
    text = f'import bertkit\nimport torch\n\n@bertkit.optimizer("mine")\ndef mine(groups, config):\n    return {body}\n'
    (tmp_path / "mine.py").write_text(text)
    assert pretrain(tiny_runs, "run", "plugins=[mine]", "optimizer=mine") == 70
    sys.modules.pop("mine", None)
    assert "KeyError: 'rate_scale'; this is a bug in bertkit or in optimizer 'mine' (" in capsys.readouterr().err


@pytest.mark.parametrize("body", ["torch.empty(1 << 50)", "bytearray(1 << 60)"])
def test_full_memory_is_no_bug(body: str, tiny_runs: Path, tmp_path: Path, capsys: Capsys) -> None:
    """Torch and Python refuse these at once; on a GPU torch has an error of its own."""
    text = f'import bertkit\nimport torch\n\n@bertkit.optimizer("huge")\ndef huge(groups, config):\n    return {body}\n'
    (tmp_path / "huge.py").write_text(text)
    refused(pretrain(tiny_runs, "run", "plugins=[huge]", "optimizer=huge"), memory.OUT_OF_MEMORY, capsys)
    sys.modules.pop("huge", None)
    assert memory.is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
