"""Training steps of two BERTs, an encoder and a decoder, compared with EncoderDecoderModel; source and target tokens count.

python recipes/how_fast/translation.py --text train.tsv --vocab-size 8000 --batch-sequences 64
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from common import MODEL, PLAIN, PRECISION, STEPS, new_model, parsed, prepared_text, sentences, some_lines
from rounds import compare
from training import WINDOW, Translations, systems

from bertkit.data.corpus.tokenizer import Tokenizer, train_wordpiece
from bertkit.model.bert_config import DecoderConfig
from bertkit.tasks.feature import Feature

WORDS = 8192  # in the vocabulary of the user's pairs
TEXT = {"--text": {"type": Path, "help": "TSV of sources and targets, with a header; default: neighbouring sentences"}}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the comparison and print its table."""
    args = parsed(__doc__, arguments, MODEL, PRECISION, STEPS, PLAIN, TEXT)
    longest, count = args.max_seq_length, WINDOW * args.batch_sequences
    with tempfile.TemporaryDirectory() as folder:
        if args.text is None:
            dataset = prepared_text(args.data_dir, Path(folder))
            texts, tokenizer = sentences(dataset, 2 * count), dataset.tokenizer
            rows = list(zip(texts[::2], texts[1::2], strict=False))
        else:
            rows = [(line.split("\t")[0], line.split("\t")[1]) for line in some_lines(args.text, count + 1)[1:]]
            tokenizer = train_wordpiece(lambda: (text for row in rows for text in row), WORDS, False, 1)
        model_dir = Path(folder) / "model"
        new_model(args, tokenizer, model_dir, ("generation",), decoder=decoder_of(tokenizer))
        sources, targets = (tokenizer([row[side] for row in rows])["input_ids"] for side in (0, 1))
        features = [
            Feature(number, source[:longest], [0] * len(source[:longest]), target_ids=target[:longest])
            for number, (source, target) in enumerate(zip(sources, targets, strict=True))
        ]
        batches = Translations(tuple(features), args.batch_sequences, args.device)
        compare(args, "tokens/s", systems(args, batches, model_dir, "EncoderDecoderModel"))


def decoder_of(tokenizer: Tokenizer) -> DecoderConfig:
    """Return the configuration of a BERT decoder that generates texts from [CLS] to [SEP]."""
    return DecoderConfig(kind="bert", start_token_id=tokenizer.facts.cls, end_token_id=tokenizer.facts.sep)


if __name__ == "__main__":
    main()
