"""Stage: export a checkpoint to a directory that `transformers` loads, unless the two implementations differ."""

import dataclasses
import hashlib
import shutil
from pathlib import Path

from bertkit.base.errors import InputError, say
from bertkit.base.files import LOCK, building_dir, sha256_file, to_json
from bertkit.base.text_files import JsonObject, read_json
from bertkit.base.typed_settings import checked, refuse
from bertkit.inference.embedding import check_pooling
from bertkit.interop.exports import card, onnx
from bertkit.interop.google.checkpoint import release_problems, write_release
from bertkit.interop.hugging_face.config_json import is_decoder, require_bert
from bertkit.interop.hugging_face.directory import tensors_of, write_model
from bertkit.interop.load import load_directory
from bertkit.interop.model_dir import hashes_of, resolve_model_dir
from bertkit.interop.parity.certificate import summary_of, worst_failure
from bertkit.interop.parity.comparison import compare, load_reference
from bertkit.interop.sentence_transformers.folder import Pooling, read_pooling
from bertkit.interop.sentence_transformers.layout import layout_files, step_files
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
CERTIFICATE = "parity.json"


def run(settings: ExportSettings) -> None:
    """Export, reload with `transformers`, compare, and only then publish the directory."""
    source = resolve_model_dir(settings.model_dir, "checkpoint")
    final = Path(settings.output_dir)
    model = _load(settings, source)
    require_bert(model, f"model_dir={settings.model_dir}")
    tokenizer = tokenizer_of(settings.model_dir, source)
    _check_layouts(settings, model, release_problems(model, tokenizer) if settings.google else [])
    pooling = _pooling_of(settings, source, model)
    text_files = _text_files(settings, source, model, pooling)
    copied = {} if pooling is None else step_files(pooling)
    identity = {
        "heads": [*model.heads, *(["pooler"] if model.bert.pooler is not None else [])],
        "formats": [settings.google, settings.onnx, settings.sentence_transformers],
        "source_sha256": hashes_of(source),
        "layout_sha256": {name: hashlib.sha256(text.encode()).hexdigest() for name, text in text_files.items()}
        | {name: sha256_file(path) for name, path in copied.items()},
    }
    if final.exists() and any(final.iterdir()):
        if not _holds(final, identity):
            is_export = (final / CERTIFICATE).is_file()
            held = "an export of another model or with other settings" if is_export else "other files"
            raise InputError(f"output_dir={final} holds {held}; choose another one")
        say(f"done already: {final} holds this export")
        return
    with building_dir(final.resolve()) as partial:
        write_model(model, tokenizer, partial, text_files)
        for name, path in copied.items():
            (partial / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(path, partial / name)
        theirs = load_reference(partial, model)
        result = _certified(settings, compare(partial, model, theirs))
        if settings.google:
            write_release(partial, model.config, tensors_of(model))
        if settings.onnx:
            result["onnx"] = onnx.write_onnx(partial, model, theirs, with_int8=settings.onnx == "int8")
        result["file_sha256"] = hashes_of(partial)  # again: other layouts add files and may change config.json
        result["export"] = {**identity, "files": _file_hashes(partial)}
        (partial / CERTIFICATE).write_text(to_json(result), encoding="utf-8")
    say(*summary_of(result).split("\n"), f"exported {result['architecture']} to {final}")
    if settings.onnx:
        say(*onnx.describe(result["onnx"]))
    if settings.onnx == "int8":
        say("measure the loss by int8 on your own data")
    say(f"to put it on the hub: hf upload YOUR_NAME/{final.name} {final}")
    if result["architecture"] == "BertModel" and model.bert.pooler is None:
        say("no pooler was trained; load the model with AutoModel.from_pretrained(..., add_pooling_layer=False)")
    if settings.google and model.config.hidden_act == "gelu":
        say("the model uses the exact gelu; the newest google-research/bert computes the tanh approximation")


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


def _check_layouts(settings: ExportSettings, model: BertWithHeads, of_release: list[str]) -> None:
    """Refuse formats that cannot hold this model, before anything is written; `of_release` are the problems of Google's."""
    is_causal, is_embedder = is_decoder(model.config), settings.sentence_transformers is not False
    problems = {
        f"sentence_transformers=true needs head=encoder; this has {', '.join(model.heads)}": is_embedder
        and model.heads,
        **{f"google=true: google-research/bert {problem}; leave it out": True for problem in of_release},
        "onnx=true: generation needs two graphs and a search; leave it out": settings.onnx
        and "generation" in model.heads,
        "onnx=true: torch cannot export attention.pattern=causal; leave it out": settings.onnx and is_causal,
    }
    refuse([problem for problem, is_wrong in problems.items() if is_wrong])
    if settings.onnx:
        onnx.check_installed()


def _text_files(
    settings: ExportSettings, source: Path, model: BertWithHeads, pooling: Pooling | None
) -> dict[str, str]:
    """Return the texts of the model card and of the files for sentence-transformers, by name."""
    files = {"README.md": card.model_card(model, _facts(settings, source, model))}
    if pooling is not None:
        files |= layout_files(pooling, model.config.hidden_size, model.config.max_position_embeddings)
    return files


def _pooling_of(settings: ExportSettings, source: Path, model: BertWithHeads) -> Pooling | None:
    """Return the pooling of an export for sentence-transformers, which is the source's own if it has one; None for others."""
    if settings.sentence_transformers is False:
        return None
    pooling = read_pooling(source) or Pooling()
    if isinstance(settings.sentence_transformers, str):
        pooling = dataclasses.replace(pooling, modes=(settings.sentence_transformers,))
    check_pooling(pooling.modes, model.config, "sentence_transformers")
    return pooling


def _facts(settings: ExportSettings, source: Path, model: BertWithHeads) -> card.CardFacts:
    facts = facts_of_checkpoint(settings.model_dir, source, f"BERT ({_heads_of(model)})")
    is_of_sentences = settings.sentence_transformers is not False
    return dataclasses.replace(
        facts, license=settings.license, language=settings.language, is_of_sentences=is_of_sentences
    )


def _certified(settings: ExportSettings, result: JsonObject) -> JsonObject:
    """Return the certificate of the written directory, or refuse if it differs from `transformers`."""
    worst = worst_failure(result)
    if worst is not None:
        raise InputError(
            f"{settings.model_dir}: not exported: it differs from transformers, most in {worst['dtype']} "
            f"{worst['what']} (by {worst['max_abs']:.1e}); see bertkit verify"
        )
    if result["tokenizer_fault"]:
        raise InputError(f"{settings.model_dir}: not exported: {result['tokenizer_fault']}")
    return result


def _holds(final: Path, identity: JsonObject) -> bool:
    """Whether a directory holds this export; refuse one in which a file was changed, added or removed."""
    content = read_json(final / CERTIFICATE) if (final / CERTIFICATE).is_file() else None
    export = content.get("export") if isinstance(content, dict) else None
    if not isinstance(export, dict) or {key: export.get(key) for key in identity} != identity:
        return False
    before, now = checked(dict[str, str], export.get("files"), final / CERTIFICATE), _file_hashes(final)
    changed = sorted(name for name in {*before, *now} - {CERTIFICATE} if before.get(name) != now.get(name))
    if changed:
        raise InputError(f"output_dir={final}: {changed[0]} changed since it was exported; remove the directory")
    return True


def _file_hashes(directory: Path) -> dict[str, str]:
    files = sorted(path for path in directory.rglob("*") if path.is_file() and path.name != LOCK)
    return {path.relative_to(directory).as_posix(): sha256_file(path) for path in files}
