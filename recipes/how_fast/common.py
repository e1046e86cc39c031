"""Arguments, texts and new models for all comparisons."""

import argparse
import dataclasses
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import chain, repeat
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
import yaml
from numpy.typing import NDArray

import bertkit
from bertkit.base.errors import InputError
from bertkit.base.processors import check_precision
from bertkit.base.typed_settings import conf_dir
from bertkit.data.corpus.prepared import PreparedDataset, open_prepared
from bertkit.data.corpus.tokenizer import Tokenizer, wordpiece
from bertkit.data.data_config import CorpusConfig
from bertkit.data.texts.documents import open_corpus
from bertkit.interop.hugging_face.directory import write_model
from bertkit.model.head.head import any_pooled
from bertkit.model.heads import BertWithHeads
from bertkit.model.initialisation import init_weights
from bertkit.train.processes import choose_device

BERTKIT = [sys.executable, "-P", "-m", "bertkit"]
SHAPES = sorted(path.stem for path in (conf_dir() / "model").glob("*.yaml"))
Options = dict[str, dict[str, Any]]


def new_file(text: str) -> Path:
    """Return the path of a new file; an existing file is refused."""
    if Path(text).exists() or not Path(text).parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: it exists already, or its folder is missing; choose another name")
    return Path(text)


ROUNDS: Options = {
    "--rounds": {"type": int, "default": 5, "help": "measured rounds, after one warm-up round"},
    "--num-threads": {"type": int, "default": 1, "help": "threads per system"},
    "--clock": {
        "default": "wall", "choices": ["wall", "processor"],
        "help": "processor: the processor time of a system's process and of those that it starts, for one thread on a busy machine",
    },
    "--output": {"type": new_file, "help": "a JSON file for the figures"},
}  # fmt: skip
DATA: Options = {
    "--data-dir": {"type": Path, "help": "a prepared dataset; default: Python's documentation"},
    "--max-seq-length": {"type": int, "default": 128, "help": "tokens per sequence"},
    "--batch-sequences": {"type": int, "default": 16, "help": "sequences per step; for texts, texts per call"},
}
MODEL: Options = {
    "--model": {"default": "mini", "choices": SHAPES, "help": "size of the new model"},
    "--vocab-size": {"type": int, "default": 30522, "help": "vocabulary of the new model, if the text has less"},
    "--device": {"default": "auto", "choices": ["auto", "cpu", "cuda"]},
    **DATA,
    **ROUNDS,
}
PRECISION: Options = {"--precision": {"default": "fp32", "choices": ["fp32", "bf16"]}}
STEPS: Options = {
    "--steps-per-round": {"type": int, "default": 3},
    "--compiled": {"action": "store_true", "help": "also compile both sides on a CPU, which takes minutes"},
}
PLAIN: Options = {"--plain": {"action": "store_true", "help": "also measure bertkit with kernels=plain"}}
TEXTS: Options = {"--num-texts": {"type": int, "default": 256}}


def parsed(description: str | None, arguments: Sequence[str] | None, *options: Options) -> argparse.Namespace:
    """Parse the command line, or `arguments`; resolve `device` to cpu or cuda."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for group in options:
        for name, settings in group.items():
            parser.add_argument(name, **settings)
    args = parser.parse_args(arguments)
    sys.excepthook = _in_one_line
    if "device" in args:
        try:
            args.device = choose_device(args.device).type
        except InputError as error:
            parser.error(str(error))
    if "precision" in args:
        check_precision(args.precision, args.device)  # for all systems: their processes inherit what it sets
    return args


def _in_one_line(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an error that ends the script; Ctrl-C without a traceback."""
    if kind is KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


def prepared_text(data_dir: Path | None, folder: Path) -> PreparedDataset:
    """Open the user's prepared dataset, or prepare Python's documentation."""
    if data_dir is None:
        data_dir = folder / "data"
        command = [*BERTKIT, "prepare", "corpus=python_docs", "tokenizer.vocab_size=8192", f"output_dir={data_dir}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return open_prepared(data_dir)


def init_as_bert(model: BertWithHeads) -> None:
    """Initialise a model's weights as BERT does."""
    init_weights(model, model.config.initializer_range, torch.Generator().manual_seed(0))


def new_model(
    args: argparse.Namespace,
    tokenizer: Tokenizer,
    target: Path,
    heads: tuple[str, ...],
    longest: int = 0,
    init: Callable[[BertWithHeads], None] = init_as_bert,
    **settings: Any,
) -> BertWithHeads:
    """Write a new model, and return it, with `longest` positions; unused words fill its vocabulary up to the size in the configuration."""
    size = max(args.vocab_size, tokenizer.vocab_size)
    words = [*tokenizer.vocab, *(f"[unused{number}]" for number in range(tokenizer.vocab_size, size))]
    vocab = {word: number for number, word in enumerate(words)}
    larger = wordpiece(vocab, tokenizer.lowercase, tokenizer.strip_accents, tokenizer.rules)
    if is_modern(args.model):
        model = bertkit.new_model(args.model, larger)
    else:
        content = yaml.safe_load((conf_dir() / "model" / f"{args.model}.yaml").read_text(encoding="utf-8"))
        shape = content.get("model", content)  # set all, else a small model has dropout and initial weights of its own
        shape["max_position_embeddings"] = max(shape["max_position_embeddings"], args.max_seq_length, longest)
        config = bertkit.new_model(
            args.model, larger, **{f"model.{name}": value for name, value in shape.items()}
        ).config
        model = BertWithHeads(dataclasses.replace(config, **settings), heads, with_pooler=any_pooled(heads))
        init(model)
    target.mkdir()
    write_model(model, larger, target)
    return model


def is_modern(model: str) -> bool:
    """Whether a shape is ModernBERT's, with its masked LM head alone."""
    return model.startswith("modern_")


def sentences(dataset: PreparedDataset, count: int) -> list[str]:
    """Select sentences that are spread over the whole prepared text."""
    split = dataset.splits["train"]
    places = np.linspace(0, len(split.sentences) - 2, min(count, len(split.sentences) - 1)).astype(int)
    borders = [(int(split.sentences[place]), int(split.sentences[place + 1])) for place in places]
    return [dataset.tokenizer.decode(split.tokens(start, end - start).tolist()) for start, end in borders]


def running_text(dataset: PreparedDataset, num_tokens: int) -> NDArray[np.int64]:
    """Return this number of tokens of the prepared text, which is repeated if it is too short."""
    split = dataset.splits["train"]
    return np.resize(split.tokens(0, min(split.num_tokens, num_tokens)).astype(np.int64), num_tokens)


def texts_of_lengths(dataset: PreparedDataset, lengths: NDArray[np.int64]) -> list[str]:
    """Cut texts with the given numbers of tokens, [CLS] and [SEP] included; a text may end inside a sentence."""
    ids = running_text(dataset, int((lengths - 2).sum()))
    return [dataset.tokenizer.decode(each.tolist()) for each in np.split(ids, (lengths - 2).cumsum()[:-1])]


def texts_of_mixed_lengths(dataset: PreparedDataset, count: int, longest: int) -> list[str]:
    """Cut texts of 4 to `longest` tokens, with lengths spread evenly on a logarithmic scale, in random order."""
    shares = np.random.default_rng(0).permutation(count) / max(1, count - 1)
    return texts_of_lengths(dataset, np.rint(4 * (longest / 4) ** shares).astype(np.int64))


def some_lines(path: Path, count: int) -> list[str]:
    """Select lines that are spread over a whole file."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [lines[place] for place in np.linspace(0, len(lines) - 1, min(count, len(lines))).astype(int)]


def write_text(text: Path | None, megabytes: int, folder: Path) -> Path:
    """Write the user's text, or Python's documentation, with a sentence per line, repeated up to the wanted size."""
    name = None if text is None else str(text)
    documents = chain.from_iterable(
        repeat(
            open_corpus(
                CorpusConfig("files" if name else "python_docs", name, "auto", "text", "auto", "utf-8", None, "train")
            )
        )
    )
    path = folder / f"text-{megabytes}.txt"
    with path.open("wb") as file:
        while file.tell() < megabytes * 1_000_000:
            file.write("\n".join([*next(documents), "", ""]).encode())
    return path
