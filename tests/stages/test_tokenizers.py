"""Models with tokenizers of any kind: trained, exported and loaded by plain `transformers`, with the same answers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from conftest import TINY_PRETRAIN, TINY_SHAPE, Capsys, refused
from tokenizer_files import TEXTS, saved_model

import bertkit
from bertkit.cli import run
from bertkit.data.corpus.prepared import open_prepared

SHORT = [" ".join(text.split()[-5:]) for text in TEXTS]
TUNE = [
    "num_epochs=2",
    "batch.sequences=8",
    "device=cpu",
    "optimizer.peak_learning_rate=1e-3",
    "schedule.warmup_steps=0",
]


@pytest.fixture(scope="module", params=["byte_level", "unigram", pytest.param("gemma", marks=pytest.mark.slow)])
def start(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_model(tmp_path_factory.mktemp("start") / request.param, request.param)


def lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def tuned(task: str, start: Path, data: Path, folder: Path, *more: str) -> Path:
    """Fine-tune a model, and export it, which compares it with `transformers`."""
    arguments = [
        f"task={task}",
        f"model_dir={start}",
        f"data_dir={data}",
        f"output_dir={folder / 'run'}",
        "dev_share=0.3",
    ]
    assert run(["finetune", *arguments, *TUNE, *more]) == 0
    assert run(["export", "head=task", f"model_dir={folder / 'run'}", f"output_dir={folder / 'out'}"]) == 0
    return folder / "out"


def of_transformers(directory: Path, auto: Any) -> tuple[Any, Any]:
    return transformers.AutoTokenizer.from_pretrained(directory), auto.from_pretrained(directory).eval()


def test_labels_of_pairs(start: Path, tmp_path: Path) -> None:
    pairs = list(zip(SHORT[:24], SHORT[-24:], strict=True))
    rows = [{"text": a, "text_pair": b, "label": "xyz"[n % 3]} for n, (a, b) in enumerate(pairs)]
    lines(tmp_path / "train.jsonl", rows)
    exported = tuned("sequence", start, tmp_path, tmp_path, "task.max_seq_length=90")
    predicted = bertkit.predict(input=rows, model_dir=str(tmp_path / "run"), device="cpu")
    tokenizer, model = of_transformers(exported, transformers.AutoModelForSequenceClassification)
    for row, (first, second) in zip(predicted, pairs, strict=True):
        with torch.no_grad():
            logits = model(**tokenizer(first, second, truncation=True, return_tensors="pt")).logits[0]
        expected = dict(zip(model.config.id2label.values(), logits.softmax(-1).tolist(), strict=True))
        assert row["probabilities"] == pytest.approx(expected, abs=1e-5)
    vectors = bertkit.embed(input=SHORT[-5:], model_dir=str(exported), device="cpu", pooling="mean", normalize=False)
    encoded = tokenizer(SHORT[-5:], padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden, mask = model.bert(**encoded).last_hidden_state, encoded["attention_mask"][..., None]
    np.testing.assert_allclose(vectors, ((hidden * mask).sum(1) / mask.sum(1)).numpy(), atol=1e-5)


def test_tags_of_words_and_entities_of_texts(start: Path, tmp_path: Path) -> None:
    sentences = [text.split() for text in SHORT[-20:]]
    rows = [{"words": words, "tags": ["B-X" if len(word) > 3 else "O" for word in words]} for words in sentences]
    lines(tmp_path / "train.jsonl", rows)
    exported = tuned("tagging", start, tmp_path, tmp_path, "task.max_seq_length=90")
    tokenizer, model = of_transformers(exported, transformers.AutoModelForTokenClassification)
    predicted = bertkit.predict(input=[{"words": words} for words in sentences], model_dir=str(exported), device="cpu")
    for row, words in zip(predicted, sentences, strict=True):
        pieces = [tokenizer(f" {word}", add_special_tokens=False)["input_ids"] for word in words]
        places = np.cumsum([1, *map(len, pieces[:-1])])
        ids = torch.tensor([[tokenizer.cls_token_id, *(n for own in pieces for n in own), tokenizer.sep_token_id]])
        with torch.no_grad():
            best = model(input_ids=ids).logits[0].argmax(-1)[places]
        assert row["tags"] == [model.config.id2label[int(number)] for number in best]
    text = "Kan lonten, (naïve) café!"
    (row,) = bertkit.predict(input=[{"text": text}], model_dir=str(exported), device="cpu")
    assert all(text[one["start"] : one["end"]] == one["text"] == one["text"].strip() for one in row["entities"])
    (own,) = bertkit.load_tokenizer(exported).words([text])
    encoded = tokenizer(text, return_tensors="pt")
    assert [number for word in own for number in word.ids] == encoded["input_ids"][0, 1:-1].tolist()
    with torch.no_grad():
        best = model(**encoded).logits[0].argmax(-1)[np.cumsum([1, *(len(word.ids) for word in own[:-1])])]
    tags = [model.config.id2label[int(number)] for number in best]
    tagged: list[tuple[int, int]] = []
    for before, word, tag in zip(["O", *tags], own, tags, strict=False):
        if tag == "I-X" and before != "O":
            tagged[-1] = (tagged[-1][0], word.end)
        elif tag != "O":
            tagged.append((word.start, word.end))
    assert [(one["start"], one["end"]) for one in row["entities"]] == tagged


def test_answers(start: Path, tmp_path: Path) -> None:
    contexts = [f"{SHORT[n]}  {SHORT[-1 - n]}" for n in range(16)]
    rows = []
    for number, context in enumerate(contexts):
        begin = context.index(" ", 3) + 1
        word = context[begin:].split()[0]
        answers = [{"text": word, "answer_start": context.index(word, begin)}]
        rows.append({"id": str(number), "question": SHORT[number + 20], "context": context, "answers": answers})
    lines(tmp_path / "train.jsonl", rows)
    lengths = [
        "task.max_seq_length=96",
        "task.spans.max_query_length=40",
        "task.spans.window_step=40",
        "task.spans.n_best=90",
    ]
    exported = tuned("spans", start, tmp_path, tmp_path, *lengths, "task.spans.is_always_answered=true")
    asked = {"model_dir": str(tmp_path / "run"), "device": "cpu"}
    predicted = bertkit.predict(
        input=[{name: row[name] for name in ("id", "question", "context")} for row in rows], **asked
    )
    tokenizer, model = of_transformers(exported, transformers.AutoModelForQuestionAnswering)
    compared = 0
    for row, example in zip(predicted, rows, strict=True):
        encoded = tokenizer(example["question"], example["context"], return_offsets_mapping=True, return_tensors="pt")
        places = encoded.pop("offset_mapping")[0].tolist()
        if len(places) > 96:
            continue
        with torch.no_grad():
            out = model(**encoded)
        inside = [n for n, sequence in enumerate(encoded.sequence_ids(0)) if sequence == 1]
        start_logits, end_logits = out.start_logits[0], out.end_logits[0]
        texts = [
            (float(start_logits[a] + end_logits[b]), example["context"][places[a][0] : places[b][1]].strip())
            for a in inside
            for b in inside
            if a <= b < a + 30
        ]
        assert row["text"].strip() == max((score, text) for score, text in texts if text)[1]  # a space is no answer
        assert row["text"] == row["text"].strip()
        compared += 1
    assert compared > 8


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def prepared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    documents = [TEXTS[first : first + 5] for first in range(0, len(TEXTS), 5)]
    (folder / "text.txt").write_text("\n\n".join("\n".join(document) for document in documents))
    arguments = [f"corpus.path={folder / 'text.txt'}", "tokenizer.vocab_size=340", "held_out_prob=0.1"]
    assert run(["prepare", f"tokenizer={request.param}", *arguments, f"output_dir={folder / 'data'}"]) == 0
    return folder / "data"


@pytest.mark.parametrize(("prepared", "more"), [
    ("bpe", ["masking=whole_word"]), ("unigram", ["masking=whole_word"]), ("bpe", ["model=modern_tiny", "segments=full_sentences"]),
], indirect=["prepared"])  # fmt: skip
def test_a_tokenizer_is_learned_pretrained_exported_and_fills_masks(
    more: list[str], prepared: Path, tmp_path: Path, capsys: Capsys
) -> None:
    arguments = [*TINY_PRETRAIN, *more]
    if "model=modern_tiny" in more:
        arguments = [word for word in arguments if word not in TINY_SHAPE]
    assert run(["pretrain", f"data_dir={prepared}", f"output_dir={tmp_path / 'run'}", *arguments]) == 0
    assert run(["export", "head=masked_lm", f"model_dir={tmp_path / 'run'}", f"output_dir={tmp_path / 'out'}"]) == 0
    assert not (tmp_path / "out" / "vocab.txt").exists()
    text = "Kan [MASK] naïve."
    bertkit.view(
        text="Kan [MASK] so.", model_dir=str(tmp_path / "out"), output=str(tmp_path / "view.json"), device="cpu"
    )
    page = json.loads((tmp_path / "view.json").read_text())
    assert "".join(page["tokens"]).replace(" ", "") == "[CLS]Kan[MASK]so.[SEP]"  # no Ġ
    predicted = bertkit.predict(input=[text], model_dir=str(tmp_path / "out"), device="cpu", top_k=3)
    tokenizer, model = of_transformers(tmp_path / "out", transformers.AutoModelForMaskedLM)
    encoded = tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        logits = model(**encoded).logits[0, encoded["input_ids"][0] == tokenizer.mask_token_id][0]
    best = logits.softmax(-1).topk(3)
    assert [one["token"] for one in predicted[0]["masks"][0]] == [tokenizer.decode([n]) for n in best.indices]
    assert [one["probability"] for one in predicted[0]["masks"][0]] == pytest.approx(best.values.tolist(), abs=1e-6)
    capsys.readouterr()
    assert (
        run(
            [
                "evaluate",
                f"model_dir={tmp_path / 'out'}",
                f"data_dir={prepared}",
                "device=cpu",
                "split=all",
                "segments.max_seq_length=32",
            ]
        )
        == 0
    )
    assert "mlm_loss" in json.loads(capsys.readouterr().out)


def test_a_translator_with_a_bpe_writes_texts_without_a_space_before_them(tmp_path: Path) -> None:
    rows = "".join(f"{text}\t{text}\n" for text in SHORT[:30])
    (tmp_path / "train.tsv").write_text(f"source\ttarget\n{rows}")
    shape = [*TINY_SHAPE[:-1], "model.max_position_embeddings=64"]
    data = [f"data_dir={tmp_path}", "dev_share=0.3", f"output_dir={tmp_path / 'run'}", "num_epochs=1", "device=cpu"]
    task = ["task=generation", "task.metrics=[exact_match_text]", "task.best_metric=exact", "task.max_seq_length=64"]
    new = ["decoder=transformer", "tokenizer=bpe", "tokenizer.vocab_size=340", "task.generation.max_target_length=9"]
    assert run(["finetune", *task, *new, *shape, *data]) == 0
    for row in bertkit.predict(input=SHORT[:3], model_dir=str(tmp_path / "run"), device="cpu"):
        assert row["text"] == row["text"].strip()


def test_the_corpus_has_the_tokens_of_the_library(prepared: Path) -> None:
    dataset = open_prepared(prepared)
    split = dataset.splits["train"]
    first = dataset.tokenizer.decode(split.tokens(0, int(split.sentences[1])).tolist())
    assert first.strip() in TEXTS


@pytest.mark.parametrize(("words", "message"), [
    (["prepare", "tokenizer=bpe", "tokenizer.lowercase=true"], "tokenizer.lowercase=true: has no effect with tokenizer=bpe"),
    (["prepare", "tokenizer=bpe", "tokenizer.rules=google"], "tokenizer.rules=google: has no effect with tokenizer=bpe"),
    (["prepare", "tokenizer=unigram", "tokenizer.strip_accents=true"], "tokenizer.strip_accents=true: has no effect with tokenizer=unigram"),
    (["prepare", "tokenizer=bpe", "tokenizer.coverage=0.9"], "tokenizer.coverage=0.9: has no effect with tokenizer=bpe, which knows"),
    (["prepare", "tokenizer.path=START", "tokenizer.strip_accents=true"], "tokenizer.strip_accents=true: its own normalizer decides"),
    (["prepare", "tokenizer=bpe", "segments=google"], "tokenizer=bpe: segments=google is for BERT's WordPiece"),
    (["prepare", "tokenizer.path=START", "segments=google"], "(segments=google) are for BERT's WordPiece, not for"),
    (["export", "model_dir=START", "head=encoder", "google=true"], "google-research/bert reads BERT's WordPiece only"),
])  # fmt: skip
def test_what_is_for_wordpiece_only(
    words: list[str], message: str, start: Path, tmp_path: Path, capsys: Capsys
) -> None:
    (tmp_path / "text.txt").write_text("\n".join(TEXTS))
    command, *more = (word.replace("START", str(start)) for word in words)
    data = [f"corpus.path={tmp_path / 'text.txt'}"] if command == "prepare" else []
    refused(run([command, *more, *data, f"output_dir={tmp_path / 'out'}"]), message, capsys)
