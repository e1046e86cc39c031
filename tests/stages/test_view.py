"""`bertkit view` as its readers meet it: exact numbers, a page in a real browser, pictures, and what is refused."""

import base64
import dataclasses
import json
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from browser import Browser, chromium
from conftest import Capsys, headed_model, minilm_dir, output_of, refused, small_model
from safetensors.numpy import load_file

from bertkit import export_model, load_model, load_tokenizer
from bertkit.apps.explain.attributions import ExplainedOutput, attribute
from bertkit.apps.explain.explain import Alignment, Explanation, rollout
from bertkit.apps.explain.heads import head_importance, head_roles
from bertkit.apps.explain.pictures import alignment_picture, attention_page, compress_attention
from bertkit.cli import run
from bertkit.data.corpus.tokenizer import Tokenizer, wordpiece
from bertkit.interop.hugging_face.directory import write_model
from bertkit.interop.load import load_packed
from bertkit.kernels.layout import Layout
from bertkit.model.attention_config import AttentionConfig
from bertkit.model.bert_config import DecoderConfig
from bertkit.tasks.feature import Feature

SPANS = ("task=spans", "task.max_seq_length=40", "task.spans.max_query_length=11")
HOSTILE = "<script>document.title='x'</script> \u202eevil\u202c \x1b[31m \U0001f600 </script><img src=x> " + "a" * 9999
Make = Callable[..., Path]


@pytest.fixture(scope="module")
def make(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Give the directory of a small model with some heads."""

    def directory(*heads: str, **changes: Any) -> Path:
        folder = tmp_path_factory.mktemp("model")
        write_model(headed_model(tokenizer, *heads, scale=3, **changes), tokenizer, folder)
        return folder

    return directory


def seen(folder: Path, model: Path, *more: str) -> dict[str, Any]:
    output = folder / "look.json"
    assert run(["view", f"model_dir={model}", f"output={output}", "overwrite=true", "device=cpu", *more]) == 0
    return dict(json.loads(output.read_text(encoding="utf-8")))


def test_probabilities_are_those_of_eager_transformers(tmp_path: Path) -> None:
    from transformers import AutoModel, AutoTokenizer

    actual = seen(tmp_path, minilm_dir(), "text=Who wrote the notes?", "text_pair=Ada wrote them.")
    batch = AutoTokenizer.from_pretrained(minilm_dir())("Who wrote the notes?", "Ada wrote them.", return_tensors="pt")
    theirs = AutoModel.from_pretrained(minilm_dir(), attn_implementation="eager").eval()
    with torch.no_grad():
        expected = torch.cat(theirs(**batch, output_attentions=True).attentions).numpy()
    ours = np.array(actual["attentions"])
    assert actual["token_ids"] == batch["input_ids"][0].tolist()
    assert actual["segments"] == batch["token_type_ids"][0].tolist()
    assert ours.shape == expected.shape == (6, 12, 12, 12)
    assert np.abs(ours - expected).max() < 1e-6
    assert np.abs(ours.sum(-1) - 1).max() < 1e-6
    assert actual["prediction"] is actual["attributions"] is None
    assert len(actual["notes"]) == 1
    shares = np.eye(12)  # rollout, written out
    for layer, of_layer in enumerate(expected.astype(np.float64)):
        mean = sum(of_layer[head] for head in range(12)) / 12
        mixed = (mean + np.eye(12)) / 2
        mixed = mixed / mixed.sum(1)[:, None]
        shares = np.array([[sum(mixed[i, k] * shares[k, j] for k in range(12)) for j in range(12)] for i in range(12)])
        assert np.abs(np.array(actual["rollout"][layer]) - shares).max() < 1e-6


def test_rollout_of_one_head_by_hand() -> None:
    attention = np.array([[[[0.5, 0.5], [0.0, 1.0]]], [[[0.0, 1.0], [1.0, 0.0]]]])
    first, second = rollout(attention)
    assert first.tolist() == [[0.75, 0.25], [0, 1]]
    assert second.tolist() == [[0.375, 0.625], [0.375, 0.625]]


def test_attributions_are_the_integral_of_differences(make: Make, tokenizer: Tokenizer) -> None:
    """Against central differences of a forward pass that takes embeddings, in the middles of many steps."""
    model, _ = load_packed(make("sequence"))
    model = model.eval().double().requires_grad_(False)
    ids = tokenizer("kan lon mir")["input_ids"]
    facts = tokenizer.facts
    baseline = [number if number in (facts.cls, facts.sep) else facts.pad for number in ids]
    feature = Feature(0, ids, [0] * len(ids), None)
    actual = attribute(model, ExplainedOutput("", "sequence", ((0, 1),)), feature, baseline, 32, 2048)
    table, embeddings = model.bert.embeddings.token.weight, model.bert.embeddings
    layout = Layout.from_lengths(torch.tensor([len(ids)]))

    def score(tokens: torch.Tensor) -> float:
        segments = embeddings.segment(torch.zeros(len(ids), dtype=torch.long))
        summed = tokens + segments + embeddings.position.weight[: len(ids)]
        hidden = model.bert.encoder(embeddings.norm(summed), layout)[-1]
        pooled = torch.tanh(model.bert.pooler.dense(hidden[0]))
        return float(model.heads["sequence"].dense(pooled)[1])

    start, end = table[baseline], table[ids]
    expected, num_steps, width = np.zeros(len(ids)), 200, 1e-5
    for step in range(num_steps):
        middle = start + (step + 0.5) / num_steps * (end - start)
        for token in range(len(ids)):  # along the way of this token alone
            along = torch.zeros_like(end)
            along[token] = width * (end - start)[token]
            expected[token] += (score(middle + along) - score(middle - along)) / (2 * width) / num_steps
    assert np.abs(actual.values - expected).max() < 1e-5
    assert np.abs(expected).max() > 0.1
    assert actual.values[0] == actual.values[-1] == 0
    assert actual.score == pytest.approx(score(end), abs=1e-12)
    assert actual.baseline_score == pytest.approx(score(start), abs=1e-12)
    assert abs(actual.error) < 1e-6


def test_head_importance_is_the_derivative_by_a_factor_of_the_head(make: Make, tokenizer: Tokenizer) -> None:
    model, _ = load_packed(make("sequence"))
    model = model.eval().double().requires_grad_(False)
    ids = tokenizer("kan lon mir")["input_ids"]
    feature, target = Feature(0, ids, [0] * len(ids), None), ExplainedOutput("", "sequence", ((0, 1),))
    actual = head_importance(model, target, feature)
    layers, heads, size = model.config.num_hidden_layers, model.config.num_attention_heads, model.config.hidden_size
    assert actual.shape == (layers, heads)
    layout = Layout.from_lengths(torch.tensor([len(ids)]))

    def score(layer: int, head: int, factor: float) -> float:
        factors = torch.ones(heads, size // heads, dtype=torch.float64)
        factors[head] = factor
        output = model.bert.encoder.layers[layer].attention.output
        with output.register_forward_pre_hook(lambda _, inputs: (inputs[0] * factors.flatten(),)):
            result = model(torch.tensor(ids), torch.zeros(len(ids), dtype=torch.long), layout)
        return float(result.logits["sequence"][0, 1])

    for layer in range(layers):
        for head in range(heads):
            difference = (score(layer, head, 1 + 1e-5) - score(layer, head, 1 - 1e-5)) / 2e-5
            assert actual[layer, head] == pytest.approx(abs(difference), abs=1e-7)
    assert actual.max() > 0.01


def test_heads_have_roles_where_more_than_half_of_their_attention_goes() -> None:
    back, forth, same = (np.eye(5, k=step) for step in (-1, 1, 0))
    to_end, spread = np.zeros((5, 5)), np.full((5, 5), 0.2)
    to_end[:, 4] = 1
    half = 0.5 * same + 0.5 * spread  # 0.6 of it on the diagonal
    less = 0.4 * same + 0.4 * forth + 0.2 * back
    heads = [[back, forth, same], [to_end, half, less]]
    actual = head_roles(np.array(heads, np.float32), ["[CLS]", "a", "b", "c", "[SEP]"], ("[CLS]", "[SEP]"))
    assert actual == [["previous token", "next token", "same token"], ["[SEP]", "same token", ""]]


def verdict_of(folder: Path, model: Path, *more: str) -> str:
    """What a page says above the first heading: the answer, its text, and the probabilities."""
    page = folder / "verdict.html"
    arguments = ["view", f"model_dir={model}", f"output={page}", "overwrite=true", "device=cpu", "steps=2", *more]
    assert run(arguments) == 0
    content = page.read_text(encoding="utf-8")
    return content[content.index("<h1>") : content.index("<h2>")]


def test_a_page_begins_with_the_verdict(make: Make, tmp_path: Path) -> None:
    model = make("sequence")
    shown, shares = verdict_of(tmp_path, model, "text=kan lon"), seen(tmp_path, model, "text=kan lon")["prediction"]
    assert f"<bdi>{shares['label']}</bdi></p>" in shown
    assert f"<h1>{model.name}</h1><p>sequence · " in shown
    assert str(model.parent) not in shown
    numbers = re.findall(r'class="number">([\d.]+)<', shown)
    assert numbers == [f"{share:.3f}" for share in sorted(shares["probabilities"].values(), reverse=True)]
    always = ("task.spans.is_always_answered=true", *SPANS)
    answer = verdict_of(tmp_path, make("span", seed=1), "text=kan lon", "text_pair=mir rur ten. sod", *always)
    (marked,) = re.findall(r"<mark[^>]*>([^<]*)</mark>", answer)
    assert f"<bdi>{marked}</bdi>" in answer
    assert (
        re.sub("<[^>]*>", "", answer[answer.index("running") :])
        .partition(">")[2]
        .strip()
        .startswith("mir rur ten. sod")
    )
    text = "kan lon mir rur ten sod kash losh misht rud"
    tagger = make("token", labels=("O", "B-X", "I-X", "B-Y", "I-Y"))
    entities = seen(tmp_path, tagger, f"text={text}")["prediction"]["entities"]
    assert entities
    marks = re.findall(r"<mark[^>]*>([^<]*)<small>([^<]*)</small></mark>", verdict_of(tmp_path, tagger, f"text={text}"))
    assert marks == [(each["text"], each["label"]) for each in entities]
    word = seen(tmp_path, make("masked_lm"), "text=kan [MASK]")["prediction"]["masks"][0][0]["token"]
    assert f"<bdi>{word}</bdi></p>" in verdict_of(tmp_path, make("masked_lm"), "text=kan [MASK]")


CASES = [
    ("a label", ("sequence",), ("text=kan lon mir",), r"the label (bad|good|ugly)", []),
    ("a chosen label", ("sequence",), ("text=kan lon", "text_pair=mir", "target=ugly"), "the label ugly", []),
    ("a tag", ("token",), ("text=kan lon mir",), r"the tag \S+ of (kan|lon|mir)", None),
    ("the tag of a word", ("token",), ("text=kan lon mir", "target=lon"), r"the tag \S+ of lon", [2]),
    ("an answer", ("span",), ("text=kan lon", "text_pair=" + "mir rur ten " * 20, *SPANS), "the answer|no answer", None),
    ("a word at a mask", ("masked_lm",), ("text=kan [MASK] lon",), r"\S+ at \[MASK\]", [2]),
    ("a chosen word", ("masked_lm",), ("text=kan [MASK] lon", "target=kan"), r"kan at \[MASK\]", [2]),
    ("two sentences", ("masked_lm", "next_sentence"), ("text=kan", "text_pair=lon"), "that the second text (follows|does not)", []),
]  # fmt: skip


@pytest.mark.parametrize(
    ("heads", "arguments", "target", "marked"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_every_head_is_explained(
    make: Make,
    tmp_path: Path,
    heads: tuple[str, ...],
    arguments: tuple[str, ...],
    target: str,
    marked: list[int] | None,
) -> None:
    model = make(*heads)
    actual = seen(tmp_path, model, *arguments)
    assert re.search(target, actual["target"]), actual["target"]
    if marked is not None:
        # a word may be several pieces
        assert actual["target_tokens"][: len(marked)] == marked
    about, prediction = actual["attributions"], actual["prediction"]
    assert prediction
    difference = about["score"] - about["baseline_score"]
    assert sum(about["values"]) - difference == pytest.approx(about["completeness_error"], abs=1e-12)
    assert abs(about["completeness_error"]) <= max(0.01 * abs(difference), 1e-5)
    # the score is the model's own logit
    batch = {"input_ids": torch.tensor([actual["token_ids"]]), "token_type_ids": torch.tensor([actual["segments"]])}
    with torch.no_grad():
        logits = load_model(model)(**batch).logits[heads[-1] if "next_sentence" in heads else heads[0]][0].numpy()
    if heads[0] == "span":
        at = actual["target_tokens"]
        assert about["score"] == pytest.approx(logits[at[0], 0] + logits[at[-1], 1], abs=1e-5)
    elif heads[0] in ("token", "masked_lm") and actual["target_tokens"]:
        assert np.abs(logits[actual["target_tokens"][0]] - about["score"]).min() < 1e-5
    else:
        assert np.abs(logits - about["score"]).min() < 1e-5


def test_an_answer_is_where_predict_finds_it(make: Make, tmp_path: Path) -> None:
    model, words = make("span", seed=1), "kan lon mir rur ten sod " * 12
    arguments = [
        f"model_dir={model}",
        "text=kan lon",
        f"text_pair={words}",
        *SPANS,
        "task.spans.is_always_answered=true",
    ]
    actual = seen(tmp_path, model, *arguments[1:])
    assert run(["predict", *arguments, f"output={tmp_path / 'p.jsonl'}", "device=cpu"]) == 0
    text = json.loads((tmp_path / "p.jsonl").read_text())["text"]
    assert text
    assert actual["target"] == f"the answer {text}"
    pieces = [actual["tokens"][place] for place in actual["target_tokens"]]
    assert "".join(pieces).replace("##", "") == text.replace(" ", "")
    assert "windows" in actual["notes"][0]


def test_a_row_of_a_run_and_a_choice(make: Make, tiny_runs: Path, tmp_path: Path) -> None:
    dev = tiny_runs / "task" / "dev.tsv"
    actual = seen(tmp_path, tiny_runs / "fine", f"input={dev}", "row=4")
    text = dev.read_text().splitlines()[4].split("\t")[0]
    assert load_tokenizer(tiny_runs / "fine")(text)["input_ids"] == actual["token_ids"]
    assert set(actual["prediction"]["probabilities"]) == {"a", "b"}
    rows = tmp_path / "choice.jsonl"
    rows.write_text(json.dumps({"context": "kan lon", "A": "mir", "B": "rur ten", "C": "sod"}) + "\n")
    choice = make("choice")
    columns = ["task.columns.context=context", "task.columns.endings=[A,B,C]"]
    actual = seen(tmp_path, choice, f"input={rows}", "task=choice", *columns, "task.max_seq_length=40", "target=1")
    assert actual["target"] == "ending 1"
    assert load_tokenizer(choice)("kan lon", "rur ten")["input_ids"] == actual["token_ids"]
    assert len(actual["prediction"]["probabilities"]) == 3


def test_no_weights_between_tokens(make: Make, tmp_path: Path, capsys: Capsys) -> None:
    model = make("sequence", attention=AttentionConfig(pattern="linformer", compressed_size=5))
    actual = seen(tmp_path, model, "text=kan lon mir")
    assert actual["attentions"] is actual["rollout"] is None
    assert abs(actual["attributions"]["completeness_error"]) < 0.01
    page = tmp_path / "a.html"
    assert run(["view", f"model_dir={model}", "text=kan lon mir", f"output={page}", "device=cpu"]) == 0
    assert "pattern=linformer" in capsys.readouterr().out
    assert "pattern=linformer" in page.read_text()
    assert run(["view", f"model_dir={model}", "text=kan", f"output={tmp_path / 'a.svg'}", "device=cpu"]) == 2
    assert "linformer" in capsys.readouterr().err


POSITIONS = {"bert": "learned", "transformer": "sinusoidal", "rnn": "none"}


@pytest.fixture(scope="module")
def writer(make: Make, tokenizer: Tokenizer) -> Callable[..., Path]:
    """Give the directory of a small model that writes."""

    def directory(kind: str, **changes: Any) -> Path:
        facts = tokenizer.facts
        decoder = DecoderConfig(kind=kind, start_token_id=facts.cls, end_token_id=facts.sep, **changes)  # type: ignore[arg-type]
        attention = AttentionConfig(positions=POSITIONS[kind])  # type: ignore[arg-type]
        return make("generation", decoder=decoder, attention=attention)

    return directory


SHORT = ("task.generation.max_target_length=11",)


def test_alignments_are_those_of_eager_transformers(writer: Callable[..., Path], tmp_path: Path) -> None:
    """Of a pair of BERTs, that of the text which it writes itself."""
    from transformers import EncoderDecoderModel

    model = writer("bert")
    actual = seen(tmp_path, model, "text=kan lon mir rur", *SHORT)
    alignment, facts = actual["alignment"], load_tokenizer(model).facts
    before = torch.tensor([[facts.cls, *alignment["token_ids"][:-1]]])
    theirs = EncoderDecoderModel.from_pretrained(model, attn_implementation="eager").eval()
    with torch.no_grad():
        batch = {"input_ids": torch.tensor([actual["token_ids"]]), "decoder_input_ids": before}
        out = theirs(**batch, output_attentions=True)
    expected = torch.cat(out.cross_attentions).numpy()
    ours = np.array(alignment["weights"])
    assert ours.shape == expected.shape == (3, 2, len(alignment["tokens"]), len(actual["tokens"]))
    assert np.abs(ours - expected).max() < 1e-6
    assert np.abs(np.array(actual["attentions"]) - torch.cat(out.encoder_attentions).numpy()).max() < 1e-6
    assert np.ptp(ours, axis=-1).max() > 0.02
    assert actual["target"] is actual["attributions"] is None
    assert actual["notes"] == []
    assert alignment["is_given"] is False
    ids = [number for number in alignment["token_ids"] if number != facts.sep]
    assert load_tokenizer(model).decode(ids, skip_special_tokens=True) == actual["prediction"]["text"]


@pytest.mark.parametrize(("kind", "shape"), [("bert", (3, 2)), ("transformer", (3, 2)), ("rnn", (1, 1))])
def test_the_alignment_of_a_text_that_is_given(
    kind: str, shape: tuple[int, int], writer: Callable[..., Path], tmp_path: Path
) -> None:
    model = writer(kind)
    actual = seen(tmp_path, model, "text=kan lon mir", "target_text=lon [SEP] kan", *SHORT)
    alignment, tokenizer = actual["alignment"], load_tokenizer(model)
    ids = [*tokenizer.encode_document(["lon [SEP] kan"])[0], tokenizer.facts.sep]
    assert alignment["token_ids"] == ids
    assert alignment["tokens"] == [tokenizer.vocab[number] for number in ids]
    with torch.no_grad():
        before = torch.tensor([[tokenizer.facts.cls, *ids[:-1]]])
        out = load_model(model)(torch.tensor([actual["token_ids"]]), decoder_input_ids=before, output_attentions=True)
    ours = np.array(alignment["weights"])
    assert out.alignments is not None
    assert ours.shape == (*shape, len(ids), len(actual["tokens"]))
    assert np.abs(ours - torch.cat(out.alignments).numpy()).max() < 1e-6
    assert np.abs(ours.sum(-1) - 1).max() < 1e-6
    assert alignment["is_given"] is True
    assert "target_text=" in " ".join(actual["notes"])
    assert (actual["attentions"] is None) == (kind == "rnn")
    # a text that does not fit, of which the rest is said
    notes = seen(tmp_path, model, "text=kan", "target_text=" + "kan " * 30, *SHORT)["notes"]
    assert any("20 pieces" in note and "task.generation.max_target_length" in note for note in notes)


def test_decoder_without_attention_has_no_alignment(
    writer: Callable[..., Path], tmp_path: Path, capsys: Capsys
) -> None:
    model = writer("rnn", score="none")
    actual = seen(tmp_path, model, "text=kan lon", *SHORT)
    assert actual["alignment"]["weights"] is None
    assert actual["num_heads"] == 0
    assert [note for note in actual["notes"] if "score=none" in note]
    arguments = ["view", f"model_dir={model}", "text=kan", "device=cpu", *SHORT]
    assert run([*arguments, f"output={tmp_path / 'a.html'}"]) == 0
    assert "score=none" in (tmp_path / "a.html").read_text()
    capsys.readouterr()
    refused(run([*arguments, f"output={tmp_path / 'a.svg'}"]), "decoder.score=none", capsys)


def test_pictures_of_an_alignment(writer: Callable[..., Path], tmp_path: Path, capsys: Capsys) -> None:
    model = writer("transformer")
    text = ["text=kan <b> & lon", "target_text=mir <i>", *SHORT]
    weights = np.array(seen(tmp_path, model, *text)["alignment"]["weights"])
    arguments = ["view", f"model_dir={model}", "device=cpu", *text]
    expected = {"all": weights.mean(1), "one": weights[1:2, 1], "layer": weights[2:].mean(1)}
    more = {"all": [], "one": ["layer=2", "head=2"], "layer": ["layer=3"]}
    for name, shares in expected.items():
        path = tmp_path / f"{name}.svg"
        assert run([*arguments, f"output={path}", *more[name]]) == 0
        images = [each.attrib for each in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}image")]
        assert len(images) == len(shares)
        for image, matrix in zip(images, shares, strict=True):
            content = base64.b64decode(image["href"].partition(",")[2])
            start = content.index(b"IDAT")
            size = int.from_bytes(content[start - 4 : start], "big")
            lines = np.frombuffer(zlib.decompress(content[start + 4 : start + 4 + size]), np.uint8)
            pixels = lines.reshape(len(matrix), -1)[:, 1:].reshape(*matrix.shape, 3)
            ink = np.array([28, 33, 40])  # white 0, nearly black 1
            assert np.abs(pixels - (255 + matrix[..., None] * (ink - 255.0))).max() <= 0.51
            assert float(image["width"]) / matrix.shape[1] == float(image["height"]) / matrix.shape[0]
    recurrent = ["view", f"model_dir={writer('rnn')}", "text=kan", "device=cpu", *SHORT]
    assert run([*recurrent, f"output={tmp_path / 'rnn.svg'}"]) == 0
    assert (tmp_path / "rnn.svg").read_text().count("<image") == 1
    capsys.readouterr()
    out = f"output={tmp_path / 'x.svg'}"
    for command, message in (
        ([*recurrent, out, "layer=1", "head=1"], "layer= and head=: a decoder of kind rnn"),
        ([*arguments, out, "layer=4"], "layer=4: "),
        ([*arguments, out, "head=1"], "layer= and head="),
        ([*arguments, out, "steps=4"], "steps=4: has no effect"),
        ([*arguments, out, "target=kan"], "target=kan: has no effect"),
        ([*arguments, out, "text_pair=a"], "takes single texts"),
    ):
        refused(run(command), message, capsys)
        assert not (tmp_path / "x.svg").exists()


@pytest.mark.parametrize(("arguments", "message"), [
    (["text=a", "output=a.html", "target_text=b"], "target_text=b: has no effect"),
    (["output=a.html"], "text=, or input="),
    (["text=a", "output=a.txt"], "output=a.txt: "),
    (["text=a", "output=a.svg", "layer=2"], "layer= and head="),
    (["text=a", "output=a.svg", "layer=9", "head=1"], "layer=9: "),
    (["text=a", "output=a.html", "target=gut"], "target=gut: "),
    (["text=a", "output=a.html", "steps=-1"], "steps=-1: "),
    (["input=in.txt", "row=9", "output=a.html"], "row=9: input=in.txt"),
])  # fmt: skip
def test_bad_view_arguments_are_refused(
    arguments: list[str], message: str, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("in.txt").write_text("kan\n")
    refused(run(["view", f"model_dir={make('sequence')}", *arguments, "device=cpu"]), message, capsys)
    assert not Path("a.html").exists()


def test_svg_has_one_image_per_head(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    arguments = ["view", f"model_dir={make('sequence')}", "text=kan <b> & lon", "device=cpu"]
    assert run([*arguments, f"output={tmp_path / 'all.svg'}"]) == 0
    assert run([*arguments, f"output={tmp_path / 'one.svg'}", "layer=3", "head=2"]) == 0
    pictures = [ElementTree.parse(tmp_path / f"{name}.svg") for name in ("all", "one")]
    assert [len(list(each.iter("{http://www.w3.org/2000/svg}image"))) for each in pictures] == [6, 1]
    assert "Layer 3, head 2" in (tmp_path / "one.svg").read_text()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "resvg_py", None)
        assert run([*arguments, f"output={tmp_path / 'x.png'}"]) == 2
    assert "pip install '.[view]'" in capsys.readouterr().err
    pytest.importorskip("resvg_py")
    assert run([*arguments, f"output={tmp_path / 'x.png'}"]) == 0
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def made_up(length: int, layers: int = 12, heads: int = 12) -> Explanation:
    """Attention that is as hard to pack as any: noise without zeros."""
    rng = np.random.default_rng(length)
    weights = rng.dirichlet(np.ones(length), size=(layers, heads, length)).astype(np.float32)
    tokens = [f"w{number}" for number in range(length)]
    segments = [int(2 * number >= length) for number in range(length)]
    return Explanation(tokens, [0] * length, segments, layers, heads, None, None, (), None, weights, rollout(weights))


def unpacked(look: Explanation) -> np.ndarray:
    result = compress_attention(look)
    content = np.frombuffer(zlib.decompress(base64.b64decode(result.text)), np.uint8)
    length = len(look.tokens)
    return (content.reshape(look.num_layers, look.num_heads + 1, length, length) / result.levels) ** 2


def test_the_page_is_small_and_near() -> None:
    look = made_up(128)
    assert len(attention_page(look, "m")) < 3_000_000
    actual = unpacked(look)
    assert look.attentions is not None
    assert np.abs(actual[:, :12] - look.attentions).max() < 2e-3
    assert np.abs(actual[:, 12] - look.rollout).max() < 4e-3


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("profile")) as result:
        yield result


KINDS = [("learned", {}), ("sinusoidal", {}), ("rotary", {"hidden_size": 28}), ("alibi", {"num_attention_heads": 13})]
KINDS += [("relative", {"max_distance": 5}), ("relative", {"max_distance": 5, "relative_to": ("values",)})]


@pytest.fixture(scope="module")
def with_positions(make: Make) -> Callable[..., Path]:
    """Give the directory of a small encoder with these positions."""

    def directory(kind: Any, **changes: Any) -> Path:
        own = {name: changes.pop(name) for name in ("max_distance", "relative_to") if name in changes}
        return make(attention=AttentionConfig(positions=kind, **own), **changes)

    return directory


def positions_of(kind: str, folder: Path) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """What positions say of distance, from the papers and the file of weights: a matrix and lines."""
    tensors, config = load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())
    size, heads, places = config["hidden_size"], config["num_attention_heads"], np.arange(41)

    def cosines(rows: np.ndarray) -> np.ndarray:
        return np.array([[a @ b / np.sqrt(a @ a * (b @ b)) for b in rows] for a in rows])

    if kind == "learned":
        (table,) = (tensors[name].astype(float) for name in tensors if name.endswith("position_embeddings.weight"))
        similar = cosines(table)
        mean = [np.mean([similar[i, i + d] for i in range(41 - d)]) for d in range(41)]
        return similar, {"mean": np.array(mean)}
    if kind == "sinusoidal":
        angles = [[p / 10000 ** (2 * (e // 2) / size) + e % 2 * np.pi / 2 for e in range(size)] for p in places]
        speeds = 10000.0 ** (-np.arange(0, size, 2) / size)
        return np.sin(angles), {"product": np.cos(places[:, None] * speeds).sum(1)}
    if kind == "rotary":
        speeds = 10000.0 ** (-2 * np.arange(size // heads // 2) / (size // heads))
        turned = np.cos(places[:, None] * speeds)
        return turned, {"score": turned.sum(1)}
    if kind == "alibi":
        slopes = np.array([2.0 ** -(8 * n / 8) for n in range(1, 9)] + [2.0 ** -(8 * n / 16) for n in (1, 3, 5, 7, 9)])
        return np.exp(-slopes[:, None] * places), {"slope": slopes}
    tables: dict[str, Any] = {}
    for side in ("key", "value"):
        own = [tensor.astype(float) for name, tensor in sorted(tensors.items()) if f"relative.{side}." in name]
        tables |= {f"{side}s": own} if own else {}
    lengths = {side: np.mean([[np.sqrt(a @ a) for a in rows] for rows in own], 0) for side, own in tables.items()}
    return np.mean([cosines(rows) for rows in next(iter(tables.values()))], 0), lengths


@pytest.mark.parametrize(("kind", "changes"), KINDS)
def test_position_view_shows_numbers_by_distance(
    kind: str, changes: dict[str, Any], with_positions: Callable[..., Path], tmp_path: Path
) -> None:
    model = with_positions(kind, **changes)
    actual = seen(tmp_path, model, "positions=true")
    matrix, lines = positions_of(kind, model)
    assert (actual["positions"], actual["first"]) == (kind, {"relative": -5, "alibi": 1}.get(kind, 0))
    assert actual["lines"].keys() == lines.keys()
    assert np.abs(np.array(actual["matrix"]) - matrix).max() < 1e-6
    assert all(np.abs(np.array(actual["lines"][name]) - line).max() < 1e-6 for name, line in lines.items())
    page = tmp_path / "a.html"
    assert run(["view", f"model_dir={model}", "positions=true", f"output={page}"]) == 0
    content = base64.b64decode(re.findall(r'href="data:image/png;base64,([^"]+)', page.read_text())[0])
    start = content.index(b"IDAT")
    length = int.from_bytes(content[start - 4 : start], "big")
    packed = np.frombuffer(zlib.decompress(content[start + 4 : start + 4 + length]), np.uint8)
    pixels = packed.reshape(len(matrix), -1)[::-1, 1:].reshape(*matrix.shape, 3)  # row 0 is at the bottom
    ink = np.where(matrix[..., None] < 0, (194, 81, 10), (31, 111, 235))
    expected = 255 - np.abs(matrix[..., None]) / np.abs(matrix).max() * (255 - ink)
    assert np.abs(pixels - expected).max() < 0.51


def test_the_positions_of_a_published_model(browser: Browser, tmp_path: Path) -> None:
    """Of MiniLM: near positions are alike; and its page, on a phone and a desk, by day and by night."""
    actual = seen(tmp_path, minilm_dir(), "positions=true")
    mean = actual["lines"]["mean"]
    assert len(mean) == 512
    assert mean[0] == pytest.approx(1)
    assert mean[1] > 0.4 > max(mean[100:200])
    browser.faults.clear()
    page = tmp_path / "a.html"
    assert run(["view", f"model_dir={minilm_dir()}", "positions=true", f"output={page}"]) == 0
    assert page.stat().st_size < 300_000
    for width, is_dark in ((390, False), (390, True), (1280, False), (1280, True)):
        browser.open(page.as_uri(), width, is_dark=is_dark)
        assert browser.ask("document.documentElement.scrollWidth") <= width
        assert browser.ask("document.querySelectorAll('figure svg').length") == 2
        shown = (
            "(() => { const { width, height } = document.querySelector('image').getBBox(); return width * height; })()"
        )
        assert browser.ask(shown) > 50_000
    assert browser.faults == []
    assert all(url.startswith("data:") for url in browser.requests)
    browser.requests.clear()


def test_position_view_of_model_without_positions_is_refused(
    with_positions: Callable[..., Path], tmp_path: Path, capsys: Capsys
) -> None:
    arguments = [f"model_dir={with_positions('none')}", f"output={tmp_path / 'a.html'}"]
    refused(
        run(["view", *arguments, "positions=true"]), "attention.positions=none shows nothing; choose a model", capsys
    )
    for more in ("text=kan", "input=-", "layer=1", "steps=0", "target_text=kan", "task=sequence", "row=2"):
        refused(run(["view", *arguments, "positions=true", more]), f"{more.partition('=')[0]}", capsys)
    refused(
        run(["view", arguments[0], "output=a.svg", "positions=true"]),
        "output=a.svg: expected a name that ends in .html, .json",
        capsys,
    )
    assert not list(tmp_path.iterdir())


def test_a_browser_shows_every_view(browser: Browser, make: Make, tmp_path: Path) -> None:
    page, model = tmp_path / "a.html", make("span", seed=1)
    arguments = ["text=kan lon", "text_pair=mir rur tensod lon", *SPANS, "task.spans.is_always_answered=true"]
    assert run(["view", f"model_dir={model}", *arguments, f"output={page}", "device=cpu"]) == 0
    exact = np.array(seen(tmp_path, model, *arguments)["attentions"])
    browser.open(page.as_uri())
    assert browser.ask("document.querySelectorAll('#heads button').length") == 6
    # first the head that matters most; words, and on demand their pieces
    look = seen(tmp_path, model, *arguments)
    importance, words = np.array(look["head_importance"]), look["words"]
    first = browser.ask("[document.querySelector('#layer').value, document.querySelector('#head').value]")
    assert first == [str(number) for number in np.unravel_index(importance.argmax(), importance.shape)]
    assert browser.ask("document.querySelectorAll('#to bdi').length") == len(words) < len(look["tokens"])
    assert browser.ask("document.querySelector('#matrix').width") == len(words)
    assert browser.ask("[...document.querySelectorAll('#down bdi')].map((each) => each.textContent)") == [
        w[0] for w in words
    ]
    browser.ask("document.querySelector('#frame').focus()")
    browser.press("ArrowRight")
    reading = browser.ask("document.querySelector('#reading').textContent")
    query, key = (int(each) - 1 for each in re.findall(r"\((\d+)\)", reading))
    rows, columns = (slice(*words[place][1:]) for place in (query, key))
    united = exact[int(first[0]), int(first[1])][rows, columns].sum(1).mean()
    assert float(re.findall(r"with weight ([\d.]+)", reading)[0]) == pytest.approx(united, abs=8e-3)
    browser.click("#pieces")
    assert browser.ask("document.querySelectorAll('#to bdi').length") == len(look["tokens"])
    browser.click("#heads button")
    # by the keyboard: to the grid, a layer down, a head on; then to a token, and to a cell of the matrix
    browser.ask("document.querySelector('#heads button').focus()")
    browser.press("ArrowDown")
    browser.press("ArrowRight")
    assert browser.ask("document.activeElement.ariaLabel") == "layer 2, head 2"
    assert browser.ask("[document.querySelector('#layer').value, document.querySelector('#head').value]") == ["1", "1"]
    browser.press("Tab")
    browser.press("Tab")
    browser.press("Tab")
    assert browser.ask("document.activeElement.id") == "from"
    browser.press("ArrowDown")
    browser.press("ArrowDown")
    assert browser.ask("document.querySelector('#from [aria-selected=true]').id") == "from-3"
    browser.press("Tab")
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        browser.press(key)
    reading = browser.ask("document.querySelector('#reading').textContent")
    query, key = (int(each) - 1 for each in re.findall(r"\((\d+)\)", reading))
    assert (query, key) == (4, 2)
    shown = float(re.findall(r"with weight ([\d.]+)", reading)[0])
    assert shown == pytest.approx(exact[1, 1, query, key], abs=4e-3)
    assert "layer 2, head 2" in reading
    # by the mouse: another head, another token, and the way from one text to the other
    browser.click("#heads button")
    assert browser.ask("document.querySelector('#heads button').ariaPressed") == "true"
    browser.click("#from-5")
    rows = browser.ask("[...document.querySelectorAll('#layers tr')].map((row) => row.innerText)")
    assert len(rows) == 3
    assert browser.ask("document.querySelector('#token').value") == "5"
    crossing = browser.ask("document.querySelector('#crossing').textContent")
    segments = np.array(seen(tmp_path, model, *arguments)["segments"])
    share = exact[0, 0][segments == 0][:, segments == 1].sum(-1).mean()
    assert float(re.findall(r"([\d.]+) %", crossing)[0]) == pytest.approx(100 * share, abs=1)
    assert browser.ask("document.querySelectorAll('#crossed bdi').length") == (segments == 1).sum()
    assert browser.ask("document.querySelectorAll('bdi.marked').length") > 0
    for width, is_dark in ((380, False), (1200, True)):
        browser.open(page.as_uri(), width, is_dark=is_dark)
        assert browser.ask("document.documentElement.scrollWidth") <= width
    assert browser.ask("getComputedStyle(document.body).backgroundColor") == "rgb(13, 17, 23)"
    assert browser.faults == browser.requests == []


def test_hostile_text_is_text(browser: Browser, make: Make, tokenizer: Tokenizer, tmp_path: Path) -> None:
    page = tmp_path / "a.html"
    vocab = {token: number for number, token in enumerate(tokenizer.vocab)}
    for strange in ("<script>", "</script><img>", "\u202e", "\U0001f600", '"><b>'):
        vocab[strange] = len(vocab)
    strange_tokenizer = wordpiece(vocab, lowercase=True)
    model = small_model(len(vocab), heads=("token",), with_pooler=False, labels=("O", "<img src=x onerror=alert(1)>"))
    folder = export_model(model, strange_tokenizer, tmp_path / "m")
    arguments = [f"model_dir={folder}", f"text={HOSTILE}", f"output={page}", "device=cpu", "task.max_seq_length=41"]
    assert run(["view", *arguments]) == 0
    ids = list(vocab.values())[-5:]
    look = made_up(5, 1, 1)
    strange_look = dataclasses.replace(look, tokens=[strange_tokenizer.vocab[n] for n in ids], token_ids=ids)
    other = tmp_path / "b.html"
    other.write_text(attention_page(strange_look, "<b>m</b>"), encoding="utf-8")
    for path, name in ((page, "m"), (other, "<b>m</b>")):
        browser.open(path.as_uri())
        assert browser.ask("document.title") == name
        assert browser.ask("document.querySelectorAll('img, h1 b, bdi > *').length") == 0
        assert browser.ask("document.querySelectorAll('script').length") == 3
    tokens = browser.ask("[...document.querySelectorAll('#to bdi')].map((each) => each.textContent)")
    assert tokens == ["<script>", "</script><img>", "\\u202e", "\U0001f600", '"><b>']
    assert browser.faults == browser.requests == []


def test_a_browser_shows_what_is_looked_at(
    browser: Browser, writer: Callable[..., Path], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    browser.faults.clear()
    browser.requests.clear()
    page, hostile = tmp_path / "a.html", f"target_text=lon {HOSTILE} mir"
    for kind, layers, heads in (("transformer", 3, 2), ("rnn", 1, 1)):
        model, text = writer(kind), f"text={HOSTILE} kan lon"
        more = [text, hostile, "task.max_seq_length=23", *SHORT]
        assert run(["view", f"model_dir={model}", *more, f"output={page}", "overwrite=true", "device=cpu"]) == 0
        actual = seen(tmp_path, model, *more)
        weights = np.array(actual["alignment"]["weights"])
        for width, is_dark in ((1200, False), (380, True)):
            browser.open(page.as_uri(), width, is_dark=is_dark)
            browser.wait("document.documentElement.dataset.aligned")
            assert browser.ask("document.documentElement.scrollWidth") <= width
            assert browser.ask("document.title") == model.name
            assert browser.ask("document.querySelectorAll('img, h1 b, bdi > *').length") == 0
        tokens = browser.ask("[...document.querySelectorAll('#a-down bdi')].map((each) => each.textContent)")
        assert tokens == actual["alignment"]["tokens"]
        assert browser.ask("document.querySelectorAll('#a-across bdi').length") == len(actual["tokens"])
        # the mean of the last layer's heads; by the keyboard three to the right and two down
        browser.ask("document.querySelector('#a-frame').focus()")
        for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowRight", "ArrowDown"):
            browser.press(key)
        reading = browser.ask("document.querySelector('#a-reading').textContent")
        assert re.findall(r"\((\d+)\)", reading) == ["3", "4"]
        shown = float(re.findall(r"with weight ([\d.]+)", reading)[0])
        assert shown == pytest.approx(weights[-1].mean(0)[2, 3], abs=4e-3)
        assert browser.ask("document.querySelector('#a-choose').hidden") == (layers * heads == 1)
        if layers * heads > 1:
            assert browser.ask("document.querySelectorAll('#a-head option').length") == heads + 1
            for select, value in (("layer", 1), ("head", 0)):
                chosen = f"(() => {{ const s = document.querySelector('#a-{select}'); s.value = {value}; s.onchange({{ target: s }}); }})()"
                browser.ask(chosen)
            reading = browser.ask("document.querySelector('#a-reading').textContent")
            shown = float(re.findall(r"with weight ([\d.]+)", reading)[0])
            assert shown == pytest.approx(weights[1, 0, 2, 3], abs=4e-3)
    vocab = {token: number for number, token in enumerate(tokenizer.vocab)}
    for strange in ("<script>", "</script><img>", "\u202e", '"><b>'):
        vocab[strange] = len(vocab)
    names = list(vocab)[-4:]
    alignment = Alignment(names, [0] * 4, np.full((1, 1, 4, 4), 0.25, np.float32))
    look = Explanation(
        names, [0] * 4, [0] * 4, 1, 0, {"text": "<img src=x>"}, None, (), None, None, None, alignment=alignment
    )
    page.write_text(attention_page(look, "<b>m</b>"), encoding="utf-8")
    browser.open(page.as_uri())
    assert browser.ask("document.querySelectorAll('img, h1 b, bdi > *').length") == 0
    tokens = browser.ask("[...document.querySelectorAll('#a-across bdi')].map((each) => each.textContent)")
    assert tokens == ["<script>", "</script><img>", "\\u202e", '"><b>']
    assert "<script>" not in alignment_picture(look)
    assert browser.faults == browser.requests == []


@pytest.mark.slow
def test_views_are_accessible(
    browser: Browser, make: Make, writer: Callable[..., Path], axe: str, tmp_path: Path
) -> None:
    page, pair = tmp_path / "a.html", ("text=kan lon", "text_pair=mir rur tensod lon")
    cases = [
        (make("sequence"), "text=kan lon tensod"),
        (make("span", seed=1), *pair, *SPANS, "task.spans.is_always_answered=true"),
        (make("token", labels=("O", "B-X", "I-X", "B-Y")), "text=kan lon mir rur ten sod kash losh misht rud"),
        (make("masked_lm"), "text=kan [MASK] lon"),
        (writer("transformer"), "text=kan lon", *SHORT),
        (make(), "positions=true"),
    ]
    for model, *arguments in cases:
        own = [f"model_dir={model}", *arguments, f"output={page}", "overwrite=true"]
        assert run(["view", *own, *(["device=cpu"] if "positions=true" not in own else [])]) == 0
        for width, is_dark in ((360, False), (1280, True)):
            browser.open(page.as_uri(), width, is_dark=is_dark)
            assert browser.violations(axe) == [], (arguments, width)


@pytest.mark.slow
def test_large_pages_open_quickly(browser: Browser, tmp_path: Path) -> None:
    for length, most_bytes, most_seconds in ((128, 3_000_000, 2), (512, 20_000_000, 5)):
        path = tmp_path / f"{length}.html"
        path.write_text(attention_page(made_up(length), "m"), encoding="utf-8")
        took = browser.open(path.as_uri())
        print(f"{length} tokens: {path.stat().st_size:,} bytes, {took:.2f} s")
        assert path.stat().st_size < most_bytes
        assert took < most_seconds
    assert browser.faults == browser.requests == []


_CAPTUM = """
import json, sys, torch
from captum.attr import LayerIntegratedGradients
from transformers import AutoModelForSequenceClassification
where, ids, types, base, column, steps = json.loads(sys.argv[1])
model = AutoModelForSequenceClassification.from_pretrained(where, attn_implementation="eager").eval()
forward = lambda ids, types: model(input_ids=ids, token_type_ids=types).logits[:, column]
gradients = LayerIntegratedGradients(forward, model.bert.embeddings.word_embeddings)
shares = gradients.attribute(torch.tensor([ids]), torch.tensor([base]), additional_forward_args=(torch.tensor([types]),), n_steps=steps)
print(json.dumps(shares.sum(-1)[0].tolist()))
"""


@pytest.mark.slow
def test_attributions_are_captums(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    from interop.exports.test_client_matrix import CLIENTS, environment

    model, _ = load_packed(minilm_dir(), heads=("sequence",))
    tokenizer = load_tokenizer(minilm_dir())
    folder = export_model(model, tokenizer, tmp_path / "m")
    actual = seen(tmp_path, folder, "text=The mill stood still all summer.", "text_pair=It rained.", "steps=50")
    ids, facts = actual["token_ids"], tokenizer.facts
    base = [number if number in (facts.cls, facts.sep) else facts.pad for number in ids]
    column = int(actual["target"][-1])
    value = json.dumps([str(folder), ids, actual["segments"], base, column, 50])
    env = environment("captum", CLIENTS["captum"][0], tmp_path_factory)
    output = output_of([sys.executable, "-c", _CAPTUM, value], env=env, cwd=tmp_path)
    theirs = np.array(json.loads(output.splitlines()[-1]))
    worst = np.abs(theirs - actual["attributions"]["values"]).max()
    print(f"largest difference {worst:.1e} of attributions up to {np.abs(theirs).max():.3f}")
    assert worst < 1e-5
