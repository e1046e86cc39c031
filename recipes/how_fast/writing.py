"""Text generation by two BERTs, greedy and with beam search, compared with `generate` of transformers: tokens per second.

    python recipes/how_fast/writing.py --batch-sequences 32 --num-texts 64

Each search generates an eighth of the texts one per call, and all texts `--batch-sequences` per call. Both libraries must
generate the same texts, except one in fifty, where the probabilities of two tokens may differ only by rounding.
"""

import argparse
import functools
import itertools
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import MODEL, TEXTS, Options, new_model, parsed, prepared_text, sentences
from rounds import Ready, System, measure, rates_table, report, summarise
from training import transformers
from translation import decoder_of

from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.inference.forward import Running
from bertkit.inference.generating import write_texts
from bertkit.inference.task_model import open_task_model
from bertkit.kernels import fast
from bertkit.model.heads import BertWithHeads
from bertkit.model.initialisation import init_weights
from bertkit.tasks.batching import FeatureBatches
from bertkit.tasks.feature import Feature
from bertkit.tasks.generation import GenerationExample, GenerationTask
from bertkit.tasks.task_config import GenerationConfig

NUM_TRIED = 32  # texts used to set the end-of-text bias of a new model
SHARE_OF_TIES = 0.02  # share of the texts that may differ
SEARCH: Options = {
    "--num-beams": {"type": int, "default": 4, "help": "beams, measured after greedy search; 1: greedy search only"},
    "--max-target-length": {"type": int, "default": 32, "help": "maximum tokens per text, including [SEP]"},
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare both libraries for each search and number of texts per call."""
    args = parsed(__doc__, arguments, MODEL, TEXTS, SEARCH)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        dataset, model_dir = prepared_text(args.data_dir, Path(folder)), Path(folder) / "model"
        tokenizer, texts = dataset.tokenizer, sentences(dataset, args.num_texts)
        init = functools.partial(
            init_writer, texts=texts[:NUM_TRIED], tokenizer=tokenizer, longest=args.max_target_length
        )
        settings = {"decoder": decoder_of(tokenizer), "init": init, "longest": args.max_target_length}
        new_model(args, tokenizer, model_dir, ("generation",), **settings)
        for num_beams, size in itertools.product(dict.fromkeys((1, args.num_beams)), (1, args.batch_sequences)):
            label = f"{'greedy' if num_beams == 1 else f'{num_beams} beams'}, {size} a call"
            work = (args, model_dir, texts if size > 1 else texts[::8], num_beams, size)
            systems = [
                System(f"{name}, {label}", functools.partial(load, *work), SHARE_OF_TIES)
                for name, load in (("Hugging Face", hugging_face), ("bertkit", bertkit))
            ]
            results += summarise(measure(args, systems, label, share_that_differs))
        report(args, "tokens/s", results, [rates_table("tokens/s", results)])


def share_that_differs(found: list[list[int]], reference: list[list[int]]) -> float:
    """Return the share of texts that differ."""
    return sum(ours != theirs for ours, theirs in zip(found, reference, strict=True)) / len(found)


def init_writer(model: BertWithHeads, texts: Sequence[str], tokenizer: Tokenizer, longest: int) -> None:
    """Initialise weights with confident predictions; bisect a bias so that half of the texts end before half of the maximum length."""
    init_weights(model, model.config.hidden_size**-0.5, torch.Generator().manual_seed(0))
    head: Any = model.eval().heads["generation"]
    ids = [each[: model.config.max_position_embeddings] for each in tokenizer(list(texts))["input_ids"]]
    features = [Feature(number, each, [0] * len(each), None) for number, each in enumerate(ids)]
    batch = FeatureBatches(features, "generation").take(np.arange(len(ids)))
    low, high = -20.0, 20.0
    for _ in range(12):
        bias = (low + high) / 2
        with torch.no_grad():
            head.score.bias[tokenizer.facts.sep] = bias
        written = write_texts(model, batch, search_of(longest, 1))
        is_long = statistics.median(len(found[0][0]) for found in written) > longest / 2
        low, high = (bias, high) if is_long else (low, bias)


def search_of(longest: int, num_beams: int) -> GenerationConfig:
    """Return the settings of greedy search or beam search, with unchanged scores."""
    return GenerationConfig(longest, num_beams, 1.0, 0.0, 1, False, 1.0, None, None)


def ready(
    args: argparse.Namespace, texts: list[str], size: int, write: Callable[[list[str]], list[list[int]]]
) -> Ready:
    """Prepare a system that generates `size` texts per call; the ids come without the first and last special token."""

    def answer() -> list[list[int]]:
        return [ids for start in range(0, len(texts), size) for ids in write(texts[start : start + size])]

    return Ready(answer, lambda number: sum(min(len(ids) + 1, args.max_target_length) for ids in answer()))


def bertkit(args: argparse.Namespace, model_dir: Path, texts: list[str], num_beams: int, size: int) -> Ready:
    """Generate with the code of the command `predict`."""
    search = asdict(search_of(args.max_target_length, num_beams))
    opened = open_task_model(str(model_dir), None, {"max_seq_length": args.max_seq_length, "generation": search})
    opened.model.use(fast.choose("auto"))
    predictor = opened.predictor("fp32", torch.device(args.device))

    def write(texts: list[str]) -> list[list[int]]:
        examples = [GenerationExample(str(number), text, None) for number, text in enumerate(texts)]
        task = GenerationTask(opened.task.config)
        features = task.features(examples, opened.tokenizer)
        found = Running(predictor, task.head).texts(features, task.search)
        task.predictions(examples, features, found, opened.tokenizer)
        return [texts[0][0] for texts in found]

    return ready(args, texts, size, write)


def hugging_face(args: argparse.Namespace, model_dir: Path, texts: list[str], num_beams: int, size: int) -> Ready:
    """Generate with `generate`; the sources of a call are padded to the longest."""
    model = transformers().EncoderDecoderModel.from_pretrained(model_dir, attn_implementation="sdpa")
    model = model.to(args.device).eval()
    tokenizer = transformers().AutoTokenizer.from_pretrained(model_dir)
    cut = {"padding": True, "truncation": True, "max_length": args.max_seq_length, "return_tensors": "pt"}
    end = tokenizer.sep_token_id
    search: dict[str, Any] = {
        "num_beams": num_beams, "max_length": args.max_target_length + 1, "do_sample": False, "length_penalty": 1.0,
        "early_stopping": False, "pad_token_id": tokenizer.pad_token_id, "eos_token_id": end,
        "decoder_start_token_id": tokenizer.cls_token_id,
    }  # fmt: skip

    def write(texts: list[str]) -> list[list[int]]:
        given = tokenizer(texts, **cut).to(args.device)
        rows = model.generate(given["input_ids"], attention_mask=given["attention_mask"], **search)
        tokenizer.batch_decode(rows, skip_special_tokens=True)
        return [list(itertools.takewhile(lambda token: token != end, row[1:])) for row in rows.tolist()]

    return ready(args, texts, size, write)


if __name__ == "__main__":
    main()
