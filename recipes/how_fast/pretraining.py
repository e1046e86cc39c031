"""Pretraining steps, compared with BertForPreTraining or ModernBertForMaskedLM of transformers: tokens per second, and peak memory.

python recipes/how_fast/pretraining.py --model base --precision bf16 --batch-sequences 8
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from common import MODEL, PLAIN, PRECISION, STEPS, is_modern, new_model, parsed, prepared_text
from rounds import compare
from training import Pairs, systems

from bertkit.model.bert_config import PRETRAINING_HEADS


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the comparison and print its table."""
    args = parsed(__doc__, arguments, MODEL, PRECISION, STEPS, PLAIN)
    with tempfile.TemporaryDirectory() as folder:
        dataset, model_dir = prepared_text(args.data_dir, Path(folder)), Path(folder) / "model"
        new_model(args, dataset.tokenizer, model_dir, PRETRAINING_HEADS)
        is_bert = not is_modern(args.model)
        pairs = Pairs(dataset.directory, args.max_seq_length, args.batch_sequences, has_pairs=is_bert)
        name = "BertForPreTraining" if is_bert else "ModernBertForMaskedLM"
        compare(args, "tokens/s", systems(args, pairs, model_dir, name))


if __name__ == "__main__":
    main()
