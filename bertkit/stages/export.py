"""Stage: export a checkpoint to a directory that `transformers` loads, unless the two implementations differ."""

import dataclasses
from pathlib import Path

from bertkit.base.errors import InputError, say
from bertkit.inference.embedding import check_pooling
from bertkit.inference.task_model import search_file_of
from bertkit.interop.exports.export import Export
from bertkit.interop.load import load_directory
from bertkit.interop.model_dir import resolve_model_dir
from bertkit.interop.sentence_transformers.folder import Pooling, read_pooling
from bertkit.model.bert_config import PRETRAINING_HEADS
from bertkit.model.heads import BertWithHeads
from bertkit.run.publishing import facts_of_checkpoint, tokenizer_of
from bertkit.settings.export import ExportSettings

# for each value of head=, the heads to load, and whether to load the pooler (None: if it exists); for "task" all, as for null
HEADS: dict[str | None, tuple[tuple[str, ...] | None, bool | None]] = {
    None: (None, None),
    "pretraining": (PRETRAINING_HEADS, True),
    "masked_lm": (("masked_lm",), False),
    "encoder": ((), None),
    "task": (None, None),
}


def run(settings: ExportSettings) -> None:
    """Export, reload with `transformers`, compare, and only then publish the directory."""
    export, final = _planned(settings), Path(settings.output_dir)
    if export.is_in(final):
        say(f"done already: {final} holds this export")
    else:
        say(*export.notes(export.write(final), final))


def _planned(settings: ExportSettings) -> Export:
    """Load the model, and return what to write; refuse what its formats cannot hold."""
    source = resolve_model_dir(settings.model_dir, "checkpoint")
    model = _load(settings, source)
    facts = dataclasses.replace(
        facts_of_checkpoint(settings.model_dir, source, f"BERT ({_heads_of(model)})"),
        license=settings.license,
        language=settings.language,
        is_of_sentences=settings.sentence_transformers is not False,
    )
    return Export(
        model,
        tokenizer_of(settings.model_dir, source),
        settings.model_dir,
        source,
        facts,
        settings.google,
        settings.onnx,
        _pooling_of(settings, source, model),
        search_file_of(settings.model_dir, model),
    )


def _load(settings: ExportSettings, source: Path) -> BertWithHeads:
    """Load the heads for `head=`; refuse a checkpoint without them."""
    model, report = load_directory(source, *HEADS[settings.head])
    if settings.head == "task":
        others = [head for head in model.heads if model.kinds[head].task is None]
        if len(model.heads) - len(others) != 1:
            raise InputError(f"model_dir={settings.model_dir} has no task head; it holds {_heads_of(model)}")
        for head in others:
            del model.heads[head]
    if report.new:
        raise InputError(
            f"model_dir={settings.model_dir} has no weights for head={settings.head} ({report.new[0]}, ...); it holds "
            f"{_heads_of(load_directory(source).model)}"
        )
    return model


def _heads_of(model: BertWithHeads) -> str:
    return ", ".join(model.heads) or "the encoder only"


def _pooling_of(settings: ExportSettings, source: Path, model: BertWithHeads) -> Pooling | None:
    """Return the pooling of an export for sentence-transformers, which is the source's own if it has one; None for others."""
    if settings.sentence_transformers is False:
        return None
    pooling = read_pooling(source) or Pooling()
    if isinstance(settings.sentence_transformers, str):
        pooling = dataclasses.replace(pooling, modes=(settings.sentence_transformers,))
    check_pooling(pooling.modes, model.config, "sentence_transformers")
    return pooling
