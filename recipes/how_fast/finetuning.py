"""Fine-tuning steps of a classifier, compared with the class of transformers, on pairs of all lengths.

python recipes/how_fast/finetuning.py --model small --batch-sequences 32
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from common import MODEL, PLAIN, PRECISION, STEPS, new_model, parsed, prepared_text
from rounds import compare
from training import Pairs, systems

from bertkit.interop.hugging_face.config_json import architecture_of


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the comparison and print its table."""
    args = parsed(__doc__, arguments, MODEL, PRECISION, STEPS, PLAIN)
    with tempfile.TemporaryDirectory() as folder:
        dataset, model_dir = prepared_text(args.data_dir, Path(folder)), Path(folder) / "model"
        model = new_model(args, dataset.tokenizer, model_dir, ("sequence",), labels=("follows", "random"))
        pairs = Pairs(
            dataset.directory,
            args.max_seq_length,
            args.batch_sequences,
            is_masked=False,
            num_types=max(1, model.config.type_vocab_size),
        )
        compare(args, "tokens/s", systems(args, pairs, model_dir, architecture_of(model)))


if __name__ == "__main__":
    main()
