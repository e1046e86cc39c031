"""Texts that are made of texts: how they are read, cut, packed, written and reviewed."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import sacrebleu
from conftest import real_data
from pyarrow import parquet
from task_configs import task_config
from task_files import read, write

from bertkit.base.errors import InputError
from bertkit.base.typed_settings import build, to_mapping
from bertkit.data.corpus.tokenizer import train_wordpiece, wordpiece
from bertkit.inference.chunks import read_rows
from bertkit.tasks.batching import Cut, FeatureBatches, TrainingOrder
from bertkit.tasks.feature import Feature
from bertkit.tasks.generation import GeneratedText, GenerationExample, GenerationPrediction, GenerationTask
from bertkit.tasks.reading.readers import open_inputs
from bertkit.tasks.scoring import metrics
from bertkit.tasks.task_config import GenerationConfig, TaskConfig

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "##d", "e", ".", "[", "]", "sep"]
TOKENIZER = wordpiece({token: number for number, token in enumerate(TOKENS)}, lowercase=True)


def task(*overrides: str, name: str = "translation") -> TaskConfig:
    return task_config(name, *(f"task.{text}" for text in overrides))


# ---- files

PAIRS = [('A cat, "two"', "Eine Katze"), ("drei\nvier", "fünf")]
RECORDS = [{"en": source, "de": target} for source, target in PAIRS]


def files(folder: Path) -> None:
    text = io.StringIO()
    csv.writer(text).writerows([("en", "de"), *PAIRS])
    write(folder, "train.csv", text.getvalue())
    write(folder, "dev.jsonl", "".join(json.dumps(record) + "\n" for record in RECORDS))
    parquet.write_table(pyarrow.Table.from_pylist(RECORDS), folder / "test.parquet")


def test_csv_json_lines_and_parquet_hold_the_same(tmp_path: Path) -> None:
    files(tmp_path)
    for split in ("train", "dev", "test"):
        chosen = ["columns.source=en", "columns.target=de", "metrics=[chrf]", "best_metric=chrf"]
        source = read(tmp_path, "translation", split, *chosen)
        assert [(each.id, each.source, each.target) for each in source.examples] == [
            (str(number), *pair) for number, pair in enumerate(PAIRS)
        ]
        assert source.describe().endswith(": 2 texts; with a target 2 (100.0%)")
        assert (source.labels, source.warnings) == ((), ())


def test_texts_inside_a_field_are_columns_as_opus_has_them(tmp_path: Path) -> None:
    rows = [{"id": "7", "translation": {"en": "x", "de": "y"}}, {"id": "8", "translation": {"en": "z", "de": "q"}}]
    write(tmp_path, "train.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "dev.parquet")
    own = ["columns.source=translation.en", "columns.target=translation.de", "metrics=[chrf]", "best_metric=chrf"]
    for split in ("train", "dev"):
        source = read(tmp_path, "translation", split, *own)
        assert source.examples == [GenerationExample("7", "x", "y"), GenerationExample("8", "z", "q")]
    with pytest.raises(InputError, match=r"it has: .*'translation\.en'.*set task\.columns\.source="):
        read(tmp_path, "translation", "train")
    inputs = read_rows(GenerationTask(task(*own)), rows, keep_rows=True)
    ((first, _),) = inputs.chunks
    assert (first.id, first.source) == ("7", "x")
    assert list(inputs.rows) == rows


def test_tables_with_usual_names_without_a_header_and_without_targets(tmp_path: Path) -> None:
    write(tmp_path, "train.tsv", 'src\tid\ttgt\nx "y\t7\tz\n\t8\t\n')
    write(tmp_path, "dev.tsv", "x\ty\nz\t\n")
    write(tmp_path, "test.tsv", "source\nx\n")
    write(tmp_path, "one.jsonl", '{"document": "x", "summary": "y"}\n')
    train = read(tmp_path, "translation", "train", "metrics=[chrf]", "best_metric=chrf")
    assert train.examples == [GenerationExample("7", 'x "y', "z"), GenerationExample("8", "", "")]
    assert train.warnings == (f"kept 1 example with an empty text, the first at {tmp_path}/train.tsv:3",)
    dev = read(tmp_path, "translation", "dev", "columns.source=0", "columns.target=1")
    assert dev.examples == [GenerationExample("0", "x", "y"), GenerationExample("1", "z", "")]
    assert "without a header" in dev.describe()
    test = read(tmp_path, "translation", "test")
    assert test.examples == [GenerationExample("0", "x", None)]
    assert test.describe().endswith(": 1 text; no labels")
    (one,) = read(tmp_path, "generation", "train", "files.train=one.jsonl").examples
    assert one == GenerationExample("0", "x", "y")


INPUTS = [
    ("in.txt", b"x y\n\nz\n", None, ["x y", "", "z"]),
    ("in.tsv", b"en\tde\nx\ty\n", None, ["x"]),
    ("in.csv", b"id,en\n5,x\n", None, ["x"]),
    ("in.jsonl", b'{"en": "x"}\n{"en": "z", "de": null}\n', None, ["x", "z"]),
    ("-", b"x\ty\n", "text", ["x\ty"]),
]


@pytest.mark.parametrize(("name", "content", "format", "expected"), INPUTS)
def test_inputs_for_prediction_need_no_target(
    name: str, content: bytes, format: str | None, expected: list[str]
) -> None:
    asked = task("columns.source=en", "columns.target=de")
    inputs = open_inputs(GenerationTask(asked), io.BufferedReader(io.BytesIO(content)), Path(name), format)  # type: ignore[arg-type]
    (examples,) = inputs.chunks
    assert [(each.source, each.target) for each in examples] == [(text, None) for text in expected]


def test_texts_in_memory() -> None:
    (examples,) = read_rows(GenerationTask(task("columns.source=en")), ["x", "y"]).chunks
    assert examples == [GenerationExample("0", "x", None), GenerationExample("1", "y", None)]
    with pytest.raises(InputError, match="takes single texts"):
        read_rows(GenerationTask(task()), [("x", "y")])


def test_what_is_held_out_shares_no_source() -> None:
    texts = GenerationTask(task())
    assert texts.content(GenerationExample("0", "x", "y")) == texts.content(GenerationExample("1", "x", "z")) == "x"


# ---- settings


def test_sampling_takes_its_settings() -> None:
    made = task("generation.sample=true", "generation.temperature=0.7", "generation.top_k=5", "generation.top_p=0.9")
    assert made.generation == GenerationConfig(64, 4, 1.0, 0.1, 1, True, 0.7, 5, 0.9)


def test_settings_of_runs_that_knew_no_generation_still_open() -> None:
    settings = to_mapping(task_config("sequence"))
    for name in ("source", "target"):
        del settings["columns"][name]
    del settings["generation"]
    assert build(TaskConfig, settings) == task_config("sequence")


# ---- features


def words(ids: list[int] | None) -> str | None:
    return None if ids is None else " ".join(TOKENS[number] for number in ids)


@pytest.mark.parametrize(("source", "target", "expected", "label", "num_cut"), [
    ("a b", "c e", "[CLS] a b [SEP]", "[CLS] c e [SEP]", 0),
    ("a", None, "[CLS] a [SEP]", None, 0),
    ("", "", "[CLS] [SEP]", "[CLS] [SEP]", 0),
    ("a b c a b c a b", "cd e", "[CLS] a b c a b c [SEP]", "[CLS] c ##d e [SEP]", 2),
    ("a", "a b c e a", "[CLS] a [SEP]", "[CLS] a b c e [SEP]", 1),
    ("a b c a b c a", "a b c e a", "[CLS] a b c a b c [SEP]", "[CLS] a b c e [SEP]", 2),
    ("[SEP] a", "[SEP]", "[CLS] [SEP] a [SEP]", "[CLS] [ sep ] [SEP]", 0),  # in a target a special token is text
])  # fmt: skip
def test_generation_features_are_as_by_hand(
    source: str, target: str | None, expected: str, label: str | None, num_cut: int
) -> None:
    small = task("max_seq_length=8", "generation.max_target_length=5")
    others = [GenerationExample("1", "b", None), GenerationExample("2", "c", "b")]
    actual = GenerationTask(small).features([others[0], GenerationExample("7", source, target), others[1]], TOKENIZER)
    assert [feature.example for feature in actual] == [0, 1, 2]
    assert (words(actual[0].target_ids), words(actual[2].target_ids)) == (None, "[CLS] b [SEP]")
    assert (words(actual[1].input_ids), words(actual[1].target_ids), actual[1].num_cut) == (expected, label, num_cut)
    assert actual[1].token_type_ids == [0] * len(actual[1].input_ids)


# ---- batches


def pairs_of(lengths: list[tuple[int, int]], is_labelled: bool = True) -> FeatureBatches:
    """Source n has the tokens 100 n, 100 n + 1, ...; its target, of that many tokens to say, 1000 n, 1000 n + 1, ..."""
    made = []
    for n, (source, target) in enumerate(lengths):
        label = [1000 * n + t for t in range(target + 1)] if is_labelled else None
        made.append(Feature(n, [100 * n + t for t in range(source)], [0] * source, target_ids=label))
    return FeatureBatches(made, "generation")


def test_targets_are_packed_beside_their_sources() -> None:
    batches = pairs_of([(2, 3), (5, 1), (3, 2)])
    batch = batches.take(np.array([2, 0]))
    assert batch.input_ids.tolist() == [200, 201, 202, 0, 1]
    assert batch.sequence_lengths.tolist() == [3, 2]
    assert batch.decoder_ids is not None
    assert batch.decoder_lengths is not None
    labels = batch.targets["generation"].labels
    assert batch.decoder_ids.tolist() == [2000, 2001, 0, 1, 2]
    assert labels.tolist() == [2001, 2002, 1, 2, 3]
    assert batch.decoder_lengths.tolist() == [2, 3]
    assert {each.dtype for each in (batch.decoder_ids, labels, batch.decoder_lengths)} == {np.dtype(np.int64)}
    assert (batch.loss_counts, batch.num_tokens) == ({"generation": 5}, 10)
    assert batches.lengths.tolist() == [5, 6, 5]


def test_without_targets_there_are_none() -> None:
    batches = pairs_of([(2, 3), (5, 1), (3, 2)], is_labelled=False)
    ((items, batch),) = batches.batches_of(100, 0, 1)
    assert items.tolist() == [0, 2, 1]
    assert (batch.targets, batch.decoder_ids, batch.decoder_lengths) == ({}, None, None)
    assert (batch.num_tokens, batches.lengths.tolist()) == (10, [2, 5, 3])


def test_neighbours_have_sources_and_then_targets_of_like_length() -> None:
    lengths = [(5, 2), (3, 7), (5, 1), (3, 2), (2, 11), (3, 7)]
    batches = pairs_of(lengths)
    ((items, _),) = batches.batches_of(1000, 0, 1)
    assert items.tolist() == [4, 3, 1, 5, 2, 0]  # of equal ones the first comes first
    order = TrainingOrder(batches, 5, seed=3, cut=Cut(13, None, 2))
    most_tokens = 0
    seen: list[tuple[int, int]] = []
    for step in range(2):
        parts = [batch for _, batch in order.micro_batches(step, 0, 1)]
        for batch in parts:
            assert batch.decoder_lengths is not None
            assert batch.num_tokens <= 13 or len(batch.sequence_lengths) == 1
            most_tokens = max(most_tokens, batch.num_tokens)
        of_step = [
            pair
            for batch in parts
            for pair in zip(batch.sequence_lengths.tolist(), np.asarray(batch.decoder_lengths).tolist(), strict=True)
        ]
        assert of_step == sorted(of_step)
        seen += of_step
    assert sorted(seen) == sorted(lengths)
    assert order.largest_part(9) == most_tokens
    whole = np.concatenate(
        [batch.targets["generation"].labels for step in range(2) for _, batch in order.micro_batches(step, 0, 1)]
    )  # type: ignore[misc]
    assert len(whole) == sum(target for _, target in lengths)


# ---- the way back


def test_predictions_and_their_files() -> None:
    examples = [GenerationExample("p", "a", "B."), GenerationExample("q", "b", None)]
    single = GenerationTask(task())
    features = single.features(examples, TOKENIZER)
    actual = [[([6, 4, 10], -0.5), ([6], -0.75)], [([], -1.0)]]  # "b [MASK] ." and "b"; an empty one
    one = single.predictions(examples, features, actual, TOKENIZER)
    assert one == [GenerationPrediction("p", "b.", -0.5), GenerationPrediction("q", "", -1.0)]
    assert single.row(examples[0], one[0]) == {"id": "p", "text": "b.", "score": -0.5, "at_limit": False}
    (lines,) = single.eval_files(examples, one).values()
    assert [json.loads(line) for line in lines] == [
        {"id": "p", "text": "b.", "score": -0.5, "at_limit": False, "reference": "B."},
        {"id": "q", "text": "", "score": -1.0, "at_limit": False, "reference": None},
    ]
    several = GenerationTask(task("generation.num_candidates=2")).predictions(examples, features, actual, TOKENIZER)
    assert several[0].candidates == (GeneratedText("b.", -0.5), GeneratedText("b", -0.75))
    ((line,),) = single.eval_files(examples[:1], several[:1]).values()
    assert json.loads(line)["candidates"] == [{"text": "b.", "score": -0.5}, {"text": "b", "score": -0.75}]


def test_texts_are_written_as_transformers_writes_them(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    lines = real_data("translation_en_de", "dev.tsv").read_text(encoding="utf-8").splitlines()[1:]
    texts = [cell for line in lines for cell in line.split("\t")] + ["it's, don't ( x ) -- 3.5 % !", "[SEP] a", "日本"]
    for lowercase in (True, False):
        tokenizer = train_wordpiece(lambda: texts, 997, lowercase, 2)
        folder = tmp_path / str(lowercase)
        tokenizer.save(folder)
        theirs = transformers.BertTokenizer.from_pretrained(folder)
        rows = [row[1:-1] for row in tokenizer(texts)["input_ids"]]
        rows.append([number for number in range(tokenizer.vocab_size)])  # special tokens too
        ours = [tokenizer.decode(row, skip_special_tokens=True) for row in rows]
        assert ours == [theirs.decode(row, skip_special_tokens=True) for row in rows]
        assert len(ours) > 1000
        assert sum(output == text for output, text in zip(ours, texts, strict=False)) > (50 if lowercase else 700)


def test_texts_are_scored_against_references_as_they_stand() -> None:
    examples = [GenerationExample("p", "x", "The cat sat on the mat."), GenerationExample("q", "x", "A dog ran off .")]
    predictions = [
        GenerationPrediction("p", "the cat sat on the mat.", -1.0),
        GenerationPrediction("q", "A dog ran off .", 0.0),
    ]
    asked = task("metrics=[bleu,chrf,rouge,exact_match_text]")
    scores = GenerationTask(asked).score(examples, predictions)
    assert (scores["exact"], scores["rouge1"], scores["rougeL"]) == (0.5, 1.0, 1.0)  # rouge lower-cases
    assert scores == metrics.score(asked.metrics, [p.text for p in predictions], [e.target for e in examples])
    assert 50 < scores["bleu"] < 100
    assert 50 < scores["chrf"] < 100


@pytest.mark.parametrize(
    ("task", "targets", "message"),
    [
        (
            "generation",
            ["файл не найден 404", "окно закрыто, ok"],
            "rouge reads only a to z and digits, and 82% of the letters",
        ),
        ("generation", ["的文件", "檔案"], "rouge reads only a to z and digits, and 100% of the letters"),
        ("generation", ["Die Tür ist größer.", "Ça va très bien."], None),
        ("translation", ["找不到这个文件。", "窗口已经关闭。"], "bleu compares runs of 4 words"),
        ("translation", ["Datei", "ein Fenster"], "bleu compares runs of 4 words"),
        ("translation", ["Datei", "ein Fenster ist"], "bleu compares runs of 4 words"),
        ("translation", ["Datei", "Es ist zu."], None),
        ("translation", ["", " "], None),
    ],
)
def test_metrics_that_cannot_measure_the_targets_are_named(
    task: str, targets: list[str], message: str | None, tmp_path: Path
) -> None:
    """A perfect model has a BLEU or ROUGE of 0 there, and it chooses the best weights."""
    rows = [{"source": "a b", "target": target} for target in targets]
    (tmp_path / "dev.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    warnings = [each for each in read(tmp_path, task, "dev").warnings if "task.metrics" in each]
    assert len(warnings) == (message is not None)
    if message is not None:
        assert warnings[0].startswith(f"{tmp_path / 'dev.jsonl'}: {message}")
        assert warnings[0].endswith("; set task.metrics=[chrf,exact_match_text] task.best_metric=chrf")
        scores = metrics.score(task_config(task).metrics[:1], targets, targets)
        assert set(scores.values()) == {0} or "404" in targets[0]


def test_the_review_has_scores_by_length_and_texts_that_are_wrong() -> None:
    examples = [GenerationExample(str(n), "w " * n, "a b c d e") for n in (1, 1, 1, 2, 3, 5, 7, 11)]
    texts = ["a b c d e" if len(each.source) < 9 else "f" for each in examples]
    predictions = [
        GenerationPrediction(each.id, text, -float(each.id)) for each, text in zip(examples, texts, strict=True)
    ]
    actual = GenerationTask(task()).review(examples, predictions)
    (table,) = actual["groups"]
    assert table["columns"] == ["words", "bleu", "texts"]
    rows = ["1 to 1|100|3", "2 to 2|100|1", "3 to 5|49.05|2", "7 to 11|0|2"]
    assert table["rows"] == [row.split("|") for row in rows]
    assert [row[0] for row in actual["mistakes"]["rows"]] == ["5", "7", "11"]  # the best scored first
    assert actual["mistakes"]["rows"][0][2:] == ["a b c d e", "f", "-5.000"]


def test_review_has_one_group_for_one_length() -> None:
    predictions = [GenerationPrediction("0", "a b c d", 0.0)]
    actual = GenerationTask(task()).review([GenerationExample("0", "w w", "a b c d")], predictions)
    assert actual["groups"][0]["rows"] == [["2 to 2", "100", "1"]]
    assert actual["mistakes"]["rows"] == []


@pytest.mark.parametrize(("lowercase", "bleu", "exact"), [(False, 76.4, 0.592), (True, 19.0, 0.0015)])
def test_what_a_perfect_model_scores_on_real_pairs(lowercase: bool, bleu: float, exact: float) -> None:
    """Pieces keep neither case nor all blanks, and the references are as the file has them."""
    named = ("columns.source=en", "columns.target=de", "metrics=[bleu,chrf,exact_match_text]")
    asked, examples = task(*named), read(real_data("translation_en_de"), "translation", "dev", *named).examples
    assert len(examples) == 687
    texts = [text for each in examples for text in (each.source, each.target)]
    tokenizer = train_wordpiece(lambda: texts, 1999, lowercase, 2)
    features = GenerationTask(asked).features(examples, tokenizer)
    batches = FeatureBatches(features, "generation")
    assert sum(batch.num_tokens for _, batch in batches.batches_of(2048, 0, 1)) == int(batches.lengths.sum())
    perfect = [[(feature.target_ids[1:-1], 0.0)] for feature in features]
    predictions = GenerationTask(asked).predictions(examples, features, perfect, tokenizer)
    scores = GenerationTask(asked).score(examples, predictions)
    assert scores["bleu"] == pytest.approx(bleu, abs=0.5)
    assert scores["exact"] == pytest.approx(exact, abs=0.01)
    again = sacrebleu.corpus_bleu([each.text for each in predictions], [[each.target for each in examples]])
    assert (scores["bleu"], scores["chrf"] > scores["bleu"]) == (again.score, True)
