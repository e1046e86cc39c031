"""Texts that are written: the same as `generate` of `transformers` gives, and what must hold of the search."""

import dataclasses
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from conftest import small_config
from torch import Tensor
from transformers import EncoderDecoderModel

from bertkit import load_model
from bertkit.base.batch import Batch
from bertkit.inference.generating import CHUNK, Written, largest, write_texts
from bertkit.kernels.fast import ALL
from bertkit.kernels.layout import Layout
from bertkit.model.attention_config import AttentionConfig
from bertkit.model.bert_config import BertConfig, DecoderConfig, NormConfig
from bertkit.model.head.head import Targets
from bertkit.model.heads import BertWithHeads
from bertkit.tasks.task_config import GenerationConfig

VOCAB, POSITIONS, START, END, LONGEST = 61, 29, 5, 7, 11
NUM_SOURCES = 200
SEARCH = GenerationConfig(
    max_target_length=23, num_beams=1, length_penalty=1.0, label_smoothing=0.0, num_candidates=1, sample=False, temperature=1.0,
    top_k=None, top_p=None,
)  # fmt: skip
Texts = list[list[int]]


def search(**changes: Any) -> GenerationConfig:
    return dataclasses.replace(SEARCH, **changes)


def make_pair() -> EncoderDecoderModel:
    """Two random BERTs with sharp attention to the source, so that texts differ and end at many lengths."""
    torch.manual_seed(0)
    shape = {
        "vocab_size": VOCAB, "hidden_size": 26, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 37,
        "max_position_embeddings": POSITIONS, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    }  # fmt: skip
    sides = [
        transformers.BertConfig(**shape, **more) for more in ({}, {"is_decoder": True, "add_cross_attention": True})
    ]
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(*sides)
    config.update({"decoder_start_token_id": START, "eos_token_id": END, "pad_token_id": 0})
    model = EncoderDecoderModel(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_large = "embeddings.weight" in name or ("crossattention" in name and "LayerNorm" not in name)
            parameter.normal_(std=1.0 if is_large else 0.15)
            if "LayerNorm.weight" in name:
                parameter.add_(1)
        model.decoder.cls.predictions.transform.LayerNorm.weight.mul_(0.5)
        model.decoder.cls.predictions.bias[END] += 6
    return model.eval()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[BertWithHeads, Any]:
    folder = tmp_path_factory.mktemp("pair")
    theirs = make_pair()
    theirs.save_pretrained(folder)
    return load_model(folder).double().model, theirs.double()


def sources_of(count: int, seed: int = 1) -> Texts:
    rng = np.random.default_rng(seed)
    return [rng.integers(8, VOCAB, size=length).tolist() for length in rng.integers(2, LONGEST + 1, size=count)]


def batch_of(sources: Texts) -> Batch:
    ids = np.concatenate([np.array(source) for source in sources])
    return Batch(ids, np.zeros_like(ids), np.array([len(source) for source in sources]))


def write(model: BertWithHeads, sources: Texts, **changes: Any) -> list[Written]:
    written = write_texts(model, batch_of(sources), search(**changes))
    assert len(written) == len(sources)
    return written


def padded(value: Texts) -> tuple[Tensor, Tensor]:
    longest = max(map(len, value))
    ids = torch.tensor([text + [0] * (longest - len(text)) for text in value])
    return ids, torch.tensor([[int(place < len(text)) for place in range(longest)] for text in value])


def generated(theirs: Any, sources: Texts, max_target_length: int, **more: Any) -> tuple[Texts, list[float]]:
    ids, mask = padded(sources)
    out = theirs.generate(
        ids, attention_mask=mask, max_length=max_target_length + 1, do_sample=False, return_dict_in_generate=True,
        output_scores=True, **more,
    )  # fmt: skip
    texts = []
    for first, *text in out.sequences.tolist():
        assert first == START
        stop = min(text.index(END) if END in text else len(text), max_target_length)
        texts.append(text[:stop])
    return texts, out.sequences_scores.tolist() if "sequences_scores" in out else []


def score_of(model: BertWithHeads, source: list[int], text: list[int], limit: int, penalty: float) -> float:
    """By all of the text at once: the sum of the logarithms / length ** penalty; a text that was cut has no [SEP]."""
    labels = text if len(text) == limit else [*text, END]
    layouts = [Layout.from_lengths(torch.tensor([length])) for length in (len(source), len(labels))]
    targets, ids = Targets(torch.tensor([START, *labels[:-1]]), layouts[1]), torch.tensor(source)
    with torch.no_grad():
        logits = model(ids, torch.zeros_like(ids), layouts[0], targets=targets).logits["generation"]
    logs = torch.log_softmax(logits, -1)[torch.arange(len(labels)), torch.tensor(labels)]
    return float(logs.sum()) / len(labels) ** penalty


# beside transformers


@pytest.mark.parametrize("max_target_length", [2, 9, 23, POSITIONS - 1])
def test_greedy_texts_are_those_of_transformers(pair: tuple[BertWithHeads, Any], max_target_length: int) -> None:
    ours, theirs = pair
    sources = sources_of(NUM_SOURCES)
    expected, _ = generated(theirs, sources, max_target_length)
    written = write(ours, sources, max_target_length=max_target_length)
    assert [texts[0][0] for texts in written] == expected
    assert all(len(texts) == 1 for texts in written)
    if max_target_length == 23:  # they differ, end at many lengths, and some are cut
        lengths = Counter(map(len, expected))
        assert len(lengths) >= 10
        assert 20 < lengths[23] < 150
        assert len(set(map(tuple, expected))) > 100
    for source, ((text, score),) in list(zip(sources, written, strict=True))[:23]:
        assert score == pytest.approx(score_of(ours, source, text, max_target_length, 1.0), abs=2e-6)


@pytest.mark.parametrize(
    ("max_target_length", "penalty", "beams"),
    [(23, 1.0, 4), (9, 1.0, 4), (2, 1.0, 4), (23, 0.6, 4), (23, 2.0, 4), (13, 0.0, 2), (9, 1.0, 17)],
)
def test_beams_are_those_of_transformers(
    pair: tuple[BertWithHeads, Any], max_target_length: int, penalty: float, beams: int
) -> None:
    """The texts, n of each, in the same order, with the same scores."""
    ours, theirs = pair
    sources = sources_of(NUM_SOURCES)
    expected, scores = generated(
        theirs, sources, max_target_length, num_beams=beams, num_return_sequences=beams, length_penalty=penalty
    )
    written = write(ours, sources, max_target_length=max_target_length, num_beams=beams, length_penalty=penalty)
    assert all(len(texts) == beams for texts in written)
    assert [text for texts in written for text, _ in texts] == expected
    np.testing.assert_allclose([score for texts in written for _, score in texts], scores, rtol=0, atol=1e-5)
    for source, texts in list(zip(sources, written, strict=True))[:11]:
        assert [score for _, score in texts] == sorted((score for _, score in texts), reverse=True)
        for text, score in texts:
            assert score == pytest.approx(score_of(ours, source, text, max_target_length, penalty), abs=1e-5)


# what must hold


def filled(config: BertConfig, seed: int, std: float) -> BertWithHeads:
    model = BertWithHeads(config, ("generation",), with_pooler=False).double().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * std)
    return model


def own_model(kind: Any, score: Any = "additive", norm: Any = "post") -> BertWithHeads:
    config = small_config(
        VOCAB, hidden_act="relu", norm=NormConfig(placement=norm), max_position_embeddings=POSITIONS, hidden_size=26,
        attention=AttentionConfig(positions="sinusoidal" if kind == "transformer" else "none"),
        decoder=DecoderConfig(kind=kind, score=score, norm=norm, start_token_id=START, end_token_id=END),
    )  # fmt: skip
    return filled(config, seed=2, std=0.5)


def plain_search(model: BertWithHeads, source: list[int], settings: GenerationConfig) -> Written:
    """The search by its definition: one source at a time, whole texts, each scored again by `forward`."""
    width, limit = settings.num_beams, settings.max_target_length
    layout, ids = Layout.from_lengths(torch.tensor([len(source)])), torch.tensor(source)
    going: list[tuple[list[int], float]] = [([], 0.0)]
    ended: Written = []
    for length in range(1, limit + 1):
        candidates = []
        for text, total in going:
            targets = Targets(torch.tensor([START, *text]), Layout.from_lengths(torch.tensor([length])))
            with torch.no_grad():
                logits = model(ids, torch.zeros_like(ids), layout, targets=targets).logits["generation"][-1]
            logs = torch.log_softmax(logits, -1).tolist()
            candidates += [(text, token, total + log) for token, log in enumerate(logs)]
        candidates = sorted(candidates, key=lambda each: -each[2])[: 2 * width]
        going = []
        for rank, (text, token, total) in enumerate(candidates):
            if token == END or length == limit:
                if rank < width:
                    ended.append((text if token == END else [*text, token], total / length**settings.length_penalty))
            elif len(going) < width:
                going.append(([*text, token], total))
        ended = sorted(ended, key=lambda each: -each[1])[:width]
        if len(ended) == width and going and going[0][1] / length**settings.length_penalty <= ended[-1][1]:
            break
    return ended


OWN = [("transformer", "additive", "post"), ("transformer", "additive", "pre")]
OWN += [("rnn", score, "post") for score in ("additive", "dot", "general", "location", "none")]


@pytest.mark.parametrize(("kind", "score", "norm"), OWN)
@pytest.mark.parametrize("beams", [1, 3])
def test_every_decoder_searches_alike(kind: str, score: str, norm: str, beams: int) -> None:
    model, sources = own_model(kind, score, norm), sources_of(5)
    written = write(model, sources, num_beams=beams, max_target_length=7)
    for source, texts in zip(sources, written, strict=True):
        expected = plain_search(model, source, search(num_beams=beams, max_target_length=7))
        assert [text for text, _ in texts] == [text for text, _ in expected]
        np.testing.assert_allclose([s for _, s in texts], [s for _, s in expected], rtol=0, atol=1e-5)


SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {}, "beams": {"num_beams": 3},
    "drawn": {"sample": True, "num_beams": 4, "num_candidates": 4},
    "drawn among few": {"sample": True, "num_beams": 2, "num_candidates": 2, "top_k": 11, "top_p": 0.9, "temperature": 0.7},
}  # fmt: skip


@pytest.mark.parametrize("how", SEARCHES)
def test_other_sources_of_a_batch_change_nothing(pair: tuple[BertWithHeads, Any], how: str) -> None:
    ours, sources = pair[0], sources_of(31)
    together, backwards = (write(ours, value, **SEARCHES[how]) for value in (sources, sources[::-1]))
    for number in (0, 3, 17, 30):
        alone = write(ours, [sources[number]], **SEARCHES[how])
        for texts in (alone[0], backwards[30 - number]):
            assert [text for text, _ in texts] == [text for text, _ in together[number]]
            np.testing.assert_allclose([s for _, s in texts], [s for _, s in together[number]], rtol=0, atol=1e-5)


@pytest.mark.parametrize("how", SEARCHES)
def test_a_text_that_never_ends_is_cut(pair: tuple[BertWithHeads, Any], how: str) -> None:
    ours, sources = pair[0], sources_of(5)
    bias = ours.get_parameter("heads.generation.score.bias").detach()
    end = float(bias[END])
    for limit in (2, 9, POSITIONS):
        try:
            bias[END] = -1e4
            written = write(ours, sources, max_target_length=limit, **SEARCHES[how])
        finally:
            bias[END] = end
        count = {"greedy": 1, "beams": 3, "drawn": 4, "drawn among few": 2}[how]
        assert [[len(text) for text, _ in texts] for texts in written] == [[limit] * count] * len(sources)
        assert all(np.isfinite(score) for texts in written for _, score in texts)


def test_empty_source_and_empty_text_are_scored(pair: tuple[BertWithHeads, Any]) -> None:
    """[CLS] [SEP] has an answer, too; a text that ends at once has the score of its [SEP] alone."""
    ours, theirs = pair
    sources = [[START, END], *sources_of(NUM_SOURCES), [START, END]]
    written = write(ours, sources)
    assert written[0][0][0] == written[-1][0][0]
    assert written[0][0][0] == generated(theirs, [[START, END]], 23)[0][0]
    at_once = [(source, texts[0][1]) for source, texts in zip(sources, written, strict=True) if texts[0][0] == []]
    assert len(at_once) > 5
    for source, score in at_once[:5]:
        assert score == pytest.approx(score_of(ours, source, [], 23, 1.0), abs=2e-6)


# drawn texts


def first_tokens(model: BertWithHeads, source: list[int], rounds: int, width: int, **changes: Any) -> Counter[int]:
    """Of many texts of a source, which ends in numbers that the model does not tell apart: each has draws of its own."""
    results: Counter[int] = Counter()
    more: dict[str, Any] = {"sample": True, "num_beams": width, "num_candidates": width, "max_target_length": 2}
    for number in range(rounds):
        sources = [[*source, 2 * VOCAB + number * 50 + place] for place in range(50)]
        for texts in write(model, sources, **more, **changes):
            assert len(texts) == width
            results.update(text[0] if text else END for text, _ in texts)
    return results


@pytest.fixture(scope="module")
def blind() -> tuple[BertWithHeads, Tensor, list[int]]:
    """A model whose tokens from 2 V on all have the same embedding, the probabilities of its first token, and the source."""
    config = small_config(
        VOCAB * 2 + 500, max_position_embeddings=POSITIONS, hidden_size=26,
        decoder=DecoderConfig(kind="bert", start_token_id=START, end_token_id=END),
    )  # fmt: skip
    model = filled(config, seed=3, std=0.3)
    with torch.no_grad():
        table = model.get_parameter("bert.embeddings.token.weight")
        table[2 * VOCAB :] = table[0]
        model.get_parameter("heads.generation.score.bias")[19:] = -40.0
    source = [11, 13, 17]
    ids, layouts = torch.tensor([*source, 2 * VOCAB]), [Layout.from_lengths(torch.tensor([n])) for n in (4, 1)]
    with torch.no_grad():
        out = model(ids, torch.zeros_like(ids), layouts[0], targets=Targets(torch.tensor([START]), layouts[1]))
    return model, out.logits["generation"][0, :19], source


# 0.9999 quantile of chi square with n degrees of freedom: n (1 - 2 / 9 n + 3.719 sqrt(2 / 9 n)) ** 3 (Wilson and Hilferty 1931)
def quantile(degrees: int) -> float:
    part = 2 / (9 * degrees)
    return float(degrees * (1 - part + 3.719 * part**0.5) ** 3)


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_drawn_tokens_have_their_probabilities(
    blind: tuple[BertWithHeads, Tensor, list[int]], temperature: float
) -> None:
    """20,000 first tokens of 19 that are possible: chi square."""
    model, logits, source = blind
    actual = first_tokens(model, source, 10, 40, temperature=temperature)
    shares = torch.softmax(logits / temperature, 0)
    assert actual.total() == 20_000
    assert set(actual) <= set(range(19))
    expected = 20_000 * shares
    is_frequent = expected >= 5
    assert int(is_frequent.sum()) >= 10
    counts = torch.tensor([actual[token] for token in range(19)], dtype=torch.float64)
    chi_square = ((counts - expected)[is_frequent] ** 2 / expected[is_frequent]).sum()
    assert float(chi_square) < quantile(int(is_frequent.sum()) - 1)
    other = 20_000 * torch.softmax(logits / (temperature * 1.5), 0)  # that the test would see
    assert float(((counts - other)[is_frequent] ** 2 / other[is_frequent]).sum()) > quantile(int(is_frequent.sum()) - 1)


def test_only_the_most_probable_are_drawn_from(blind: tuple[BertWithHeads, Tensor, list[int]]) -> None:
    model, logits, source = blind
    shares, order = torch.softmax(logits, 0).sort(descending=True)
    best: list[int] = order.tolist()
    assert set(first_tokens(model, source, 1, 17, top_k=3)) == set(best[:3])
    assert set(first_tokens(model, source, 1, 7, top_k=1)) == {best[0]}
    for count in (2, 5):  # the fewest tokens that have top_p together
        for top_p in (float(shares[: count - 1].sum()) + 1e-4, float(shares[:count].sum()) - 1e-4):
            assert set(first_tokens(model, source, 1, 17, top_p=top_p)) == set(best[:count])
    assert set(first_tokens(model, source, 1, 17, top_p=1e-9)) == {best[0]}
    kept = shares[:2] / shares[:2].sum()  # top_p is of what top_k leaves, as in transformers
    assert float(shares[:4].sum()) < float(kept[0])
    assert set(first_tokens(model, source, 1, 17, top_k=2, top_p=float(kept[0]) - 1e-4)) == {best[0]}
    both = first_tokens(model, source, 3, 17, top_k=2, top_p=float(kept[0]) + 1e-4)
    assert set(both) == set(best[:2])
    assert both[best[0]] / both.total() == pytest.approx(float(kept[0]), abs=0.03)


def test_drawn_texts_are_the_models_own(pair: tuple[BertWithHeads, Any]) -> None:
    """Their scores are those of their tokens; the texts of a source differ, are repeatable, and are sorted."""
    ours, sources = pair[0], sources_of(11)
    written = write(ours, sources, **SEARCHES["drawn"])
    assert written == write(ours, sources, **SEARCHES["drawn"])
    assert sum(len({tuple(text) for text, _ in texts}) == 4 for texts in written) >= 6
    for source, texts in zip(sources, written, strict=True):
        assert [score for _, score in texts] == sorted((score for _, score in texts), reverse=True)
        for text, score in texts:
            assert END not in text
            assert score == pytest.approx(score_of(ours, source, text, 23, 1.0), abs=1e-5)


# as a run computes


def test_fast_ways_and_bfloat16_write_the_same_texts(pair: tuple[BertWithHeads, Any]) -> None:
    """With the fast ways of float32 the same texts, and nearly all of them where products are rounded to bfloat16."""
    ours, sources = pair[0], sources_of(101)
    expected = [texts[0][0] for texts in write(ours, sources, num_beams=3)]
    try:
        ours.float().use(ALL)
        actual = [texts[0][0] for texts in write(ours, sources, num_beams=3)]
        rounded = [texts[0][0] for texts in write_texts(ours, batch_of(sources), search(num_beams=3), "bf16")]
    finally:
        ours.double()
    assert sum(one == other for one, other in zip(actual, expected, strict=True)) >= 99
    assert sum(one == other for one, other in zip(rounded, expected, strict=True)) >= 50


@pytest.mark.parametrize(("kind", "score", "norm"), OWN)
def test_half_precision_of_every_decoder(kind: str, score: str, norm: str) -> None:
    """A text has nearly the score that it has in float64: the largest difference was 0.11."""
    model, sources = own_model(kind, score, norm).float(), sources_of(23)
    written = write_texts(model, batch_of(sources), search(max_target_length=7), "bf16")
    model.double()
    for source, ((text, scored), *_) in zip(sources, written, strict=True):
        assert scored == pytest.approx(score_of(model, source, text, 7, 1.0), abs=0.2)


# the largest numbers


@pytest.mark.parametrize("count", [1, 2, 8, 34])
@pytest.mark.parametrize(
    "size", [1, 7, 34, CHUNK - 1, CHUNK, 2 * CHUNK * 8 - 1, 2 * CHUNK * 8, 2 * CHUNK * 8 + 1, 8887, 30522]
)
def test_largest_equals_torch_topk(size: int, count: int) -> None:
    logits = torch.randn(3, size, generator=torch.Generator().manual_seed(size + count))
    logits[1] = logits[1].sort()[0]  # the largest side by side, at the end
    logits[2] = logits[2].sort(descending=True)[0]
    values, places = largest(logits, count)
    expected = logits.topk(min(count, size))
    assert torch.equal(values, expected[0])
    assert torch.equal(logits.gather(1, places), values)
    assert all(len(set(row)) == min(count, size) for row in places.tolist())


def test_more_beams_than_a_small_vocabulary_has_tokens() -> None:
    """2 W continuations of a row are more than there are tokens."""
    config = small_config(
        11, max_position_embeddings=POSITIONS, decoder=DecoderConfig(kind="bert", start_token_id=5, end_token_id=7)
    )
    model = filled(config, seed=4, std=0.3)
    written = write(model, [[1, 2, 3], [4, 9]], num_beams=6, max_target_length=3)
    for source, texts in zip([[1, 2, 3], [4, 9]], written, strict=True):
        expected = plain_search(model, source, search(num_beams=6, max_target_length=3))
        assert [text for text, _ in texts] == [text for text, _ in expected]
