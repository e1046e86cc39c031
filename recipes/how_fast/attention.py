"""Time and memory of a training step for each attention pattern, by the number of tokens of one sequence.

    python recipes/how_fast/attention.py --model tiny --vocab-size 1000 --lengths 128 512 2048 8192

Each option and length is measured in its own process. Memory is its peak beyond what model and optimizer held before.
"""

import functools
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common import MODEL, PRECISION, STEPS, Options, new_model, parsed, prepared_text
from rounds import System, held, one_round, report, started
from scaling import Points, exponent
from training import FullSequences, Training, bertkit

from bertkit.base.typed_settings import build
from bertkit.display.page import Table
from bertkit.model.bert_config import PRETRAINING_HEADS
from bertkit.settings.pretrain import PretrainSettings
from bertkit.settings.reading.compose import compose

LENGTHS: Options = {
    "--lengths": {"type": int, "nargs": "+", "default": [64, 128, 256, 512, 1024, 2048], "help": "tokens per sequence"},
    "--options": {
        "nargs": "+",
        "default": [
            "attention.pattern=full",
            "attention.pattern=window attention.window=64",
            "attention.pattern=bigbird attention.block_size=32 attention.random_blocks=1",
            "attention.pattern=linformer attention.compressed_size=128",
        ],
        "help": "settings of attention and norm, as in pretrain; separate several settings of one option by spaces",
    },
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the measurement and print its table."""
    args = parsed(__doc__, arguments, MODEL, PRECISION, STEPS, LENGTHS)
    seconds: dict[str, Points] = {option: [] for option in args.options}
    megabytes: dict[str, Points] = {option: [] for option in args.options}
    with tempfile.TemporaryDirectory() as folder:
        dataset = prepared_text(args.data_dir, Path(folder))
        for number, option in enumerate(args.options):
            given = build(PretrainSettings, compose("pretrain", ["data_dir=x", "output_dir=x", *option.split()]))
            model_dir = Path(folder) / f"model-{number}"
            # with causal attention [CLS] sees only itself, so the output is the mean of all tokens
            settings: dict[str, Any] = {"attention": given.attention, "norm": given.norm, "pooling": "mean"}
            new_model(args, dataset.tokenizer, model_dir, PRETRAINING_HEADS, max(args.lengths), **settings)
            for length in args.lengths:
                batches = FullSequences(dataset.directory, length, 1)
                training = Training(batches, model_dir, "BertForPreTraining", args.device, args.steps_per_round)
                load = functools.partial(bertkit, training, args.precision)
                with started(System(option, load), args.num_threads) as ask:
                    before = ask(held)
                    rounds = [ask(one_round, number) for number in range(args.rounds + 1)][1:]
                taken = statistics.median(each.seconds for each in rounds) / args.steps_per_round
                seconds[option].append((length, taken))
                megabytes[option].append((length, rounds[-1].megabytes - before))
                print(f"{option}, {length} tokens: {1000 * taken:.0f} ms", flush=True)
    results = [
        {
            "option": option,
            "seconds_exponent": exponent(seconds[option]),
            "megabytes_exponent": exponent(megabytes[option]),
            "points": [
                {"length": length, "seconds": taken, "megabytes": most}
                for (length, taken), (_, most) in zip(seconds[option], megabytes[option], strict=True)
            ],
        }
        for option in args.options
    ]
    of_step = f"of a step of one sequence, {args.precision}"
    tables = [table(f"Milliseconds {of_step}", seconds, 1000), table(f"Megabytes {of_step}", megabytes, 1)]
    report(args, "seconds", results, tables)


def table(title: str, lines: Mapping[str, Points], factor: float) -> Table:
    """Return a table of one figure: a row for each option, a column for each length, and the exponent."""
    rows = [
        (
            f"{row[0][0]:,}",
            *(f"{factor * value:,.3g}" if factor * value < 100 else f"{factor * value:,.0f}" for _, value in row),
        )
        for row in zip(*lines.values(), strict=True)
    ]
    powers = [exponent(line) for line in lines.values()]
    last = ("exponent", *("" if power is None else f"{power:.2f}" for power in powers))
    return Table(title, ("tokens", *(option.replace("attention.", "") for option in lines)), [*rows, last])


if __name__ == "__main__":
    main()
