"""Stage: checkpoint -> a directory that `transformers` loads; refuses if the two implementations differ."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

import torch

from bertkit.config import to_mapping
from bertkit.errors import InputError
from bertkit.files import building_dir, read_json, sha256_file, to_json
from bertkit.interop.exports import card, onnx, sentence_transformers
from bertkit.interop.google import checkpoint as tensorflow
from bertkit.interop.hugging_face import directory as huggingface
from bertkit.interop.load import load_tokenizer, resolve_model_dir, write_model
from bertkit.interop.parity import certificate
from bertkit.interop.parity import comparison as parity
from bertkit.model.config import PRETRAINING_HEADS, TASK_HEADS
from bertkit.model.heads import BertWithHeads
from bertkit.run.directory import read_manifest, read_settings, run_of
from bertkit.settings.schemas import ExportSettings

# head= -> the heads to load, and whether the pooler comes along (None: if there is one); task: whichever is there
HEADS: dict[str | None, tuple[tuple[str, ...] | None, bool | None]] = {
    None: (None, None),
    "pretraining": (PRETRAINING_HEADS, True),
    "masked_lm": (("masked_lm",), False),
    "encoder": ((), None),
}
CERTIFICATE = "parity.json"


def run(settings: ExportSettings) -> None:
    """Export, reload with `transformers`, compare, and only then publish the directory.

    Raises:
        InputError: the checkpoint lacks the head, the directory holds something else, or the comparison fails.
    """
    source = resolve_model_dir(settings.checkpoint, "checkpoint")
    final = Path(settings.output_dir)
    if final.exists() and not final.is_dir():
        raise InputError(f"output_dir={final} is a file; choose a directory")
    model = _load(settings, source)
    _check_layouts(settings, model)
    more_files = _more_files(settings, source, model)
    shaping = {**to_mapping(settings), "output_dir": None, "checkpoint": None}
    hashes = {name: hashlib.sha256(content.encode()).hexdigest() for name, content in more_files.items()}
    identity = {"settings": shaping, "source_sha256": huggingface.hashes_of(source), "layout_sha256": hashes}
    if final.exists() and any(final.iterdir()):
        if not _holds(final, identity):
            raise InputError(f"output_dir={final} holds another export or something else; choose another one")
        print(f"done already: {final} holds this export")
        return
    with building_dir(final) as partial:
        write_model(model, load_tokenizer(source), partial, more_files)
        result = parity.certificate(partial, rewrite=False)
        worst = certificate.worst_failure(result)
        if worst is not None:
            raise InputError(
                f"{settings.checkpoint}: not exported, for it differs from transformers, most in {worst['dtype']} "
                f"{worst['what']} (by {worst['max_abs']:.1e}); see bertkit verify"
            )
        if result["tokenizer_fault"]:
            raise InputError(f"{settings.checkpoint}: not exported: {result['tokenizer_fault']}")
        if settings.google:
            _write_google(partial, model)
        if settings.onnx:
            result["onnx"] = onnx.write_onnx(partial, result["architecture"], model.bert.pooler is not None)
        files = {path.relative_to(partial).as_posix(): sha256_file(path) for path in _files(partial)}
        result["export"] = {**identity, "files": files}
        (partial / CERTIFICATE).write_text(to_json(result), encoding="utf-8")
    print(certificate.in_one_screen(result))
    print(f"exported {result['architecture']} to {final}")
    if result["architecture"] == "BertModel" and model.bert.pooler is None:
        print(
            "it has no pooler, which was not trained: load it with AutoModel.from_pretrained(..., add_pooling_layer=False)"
        )
    if settings.google and model.config.hidden_act == "gelu":
        print("its gelu is the exact one; the newest google-research/bert computes the tanh approximation")


def _files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file() and path.name != ".lock")


def _holds(final: Path, identity: dict[str, Any]) -> bool:
    """Whether a directory holds this export, every file as it was written."""
    if not (final / CERTIFICATE).is_file():
        return False
    content = read_json(final / CERTIFICATE)
    export = content.get("export") if isinstance(content, dict) else None
    if not isinstance(export, dict) or {key: export.get(key) for key in identity} != identity:
        return False
    present = {path.relative_to(final).as_posix(): sha256_file(path) for path in _files(final)}
    del present[CERTIFICATE]
    changed = sorted(name for name in {*present, *export["files"]} if present.get(name) != export["files"].get(name))
    if changed:
        raise InputError(f"output_dir={final}: {changed[0]} changed since it was exported; remove the directory")
    return True


def _check_layouts(settings: ExportSettings, model: BertWithHeads) -> None:
    """Refuse layouts that the heads do not fit, before anything is written."""
    heads = ", ".join(model.heads)
    if settings.sentence_transformers is not False and model.heads:
        raise InputError(f"sentence_transformers=true needs head=encoder; this has {heads}")
    if settings.google and set(model.heads) & {"token", "choice"}:
        raise InputError(f"google=true: google-research/bert has no {heads} head; export another one")
    if settings.onnx:
        onnx.check_installed()


def _load(settings: ExportSettings, source: Path) -> BertWithHeads:
    """Load the heads that are asked for, and none that the checkpoint does not hold."""
    heads: tuple[str, ...] | None
    if settings.head == "task":
        task_heads: tuple[str, ...] = tuple(head for head in huggingface.load(source)[0].heads if head in TASK_HEADS)
        if len(task_heads) != 1:
            raise InputError(f"checkpoint={settings.checkpoint} has no task head; it holds {_held(source)}")
        heads, with_pooler = task_heads, None
    else:
        heads, with_pooler = HEADS[settings.head]
    model, report = huggingface.load(source, heads, with_pooler)
    if report.new:
        raise InputError(
            f"checkpoint={settings.checkpoint} has no weights for head={settings.head} ({report.new[0]}, ...); it holds "
            f"{_held(source)}"
        )
    return model


def _held(source: Path) -> str:
    model, _ = huggingface.load(source)
    return ", ".join(model.heads) or "the encoder only"


def _more_files(settings: ExportSettings, source: Path, model: BertWithHeads) -> dict[str, str]:
    """The card, and what other layouts need beside the Hugging Face files."""
    files = {"README.md": card.model_card(model, _facts(settings, source))}
    if settings.sentence_transformers is not False:
        pooling = sentence_transformers.read_pooling(source) or sentence_transformers.Pooling()
        if isinstance(settings.sentence_transformers, str):
            pooling = dataclasses.replace(pooling, mode=settings.sentence_transformers)
        config = model.config
        files |= sentence_transformers.layout_files(pooling, config.hidden_size, config.max_position_embeddings)
    return files


def _write_google(directory: Path, model: BertWithHeads) -> None:
    """Add the files of google-research/bert, and read them back."""
    tensors = huggingface.tensors_of(model)
    tensorflow.google_files(directory, model.config, tensors)
    again, _ = tensorflow.read_weights(directory / tensorflow.NAME)
    prefix = "" if model.heads else "bert."
    written = {prefix + name: tensor for name, tensor in tensors.items()}
    if set(again) != set(written) or not all(torch.equal(again[name], tensor) for name, tensor in written.items()):
        raise InputError(f"{directory / tensorflow.NAME}: not read back as it was written; try again")


def _facts(settings: ExportSettings, source: Path) -> card.CardFacts:
    """What is known of the run that the checkpoint comes from: its settings, and its results if it is the last one."""
    facts = card.CardFacts(title=f"BERT ({settings.head or 'all heads'})")
    run_dir = run_of(settings.checkpoint)
    if run_dir is not None:
        manifest = read_manifest(run_dir)
        identity = manifest["identity"]
        if "task" in identity:
            results = read_json(run_dir / "eval.json") if (run_dir / "eval.json").is_file() else {}
            facts = card.finetuning_facts(identity, results)
            return dataclasses.replace(facts, license=settings.license, language=settings.language)
        step = read_json(source / "state.json")["step"] if (source / "state.json").is_file() else identity["steps"]
        is_final = step == identity["steps"] and (run_dir / "eval.json").is_file()
        steps = step if step == identity["steps"] else f"{step} of {identity['steps']}"
        results = read_json(run_dir / "eval.json") if is_final else {}
        text = manifest["corpus"]["description"]
        start = manifest["init_from"]["model_dir"] if manifest["init_from"] else None
        facts = card.pretraining_facts({**read_settings(run_dir), "steps": steps}, text, results, start, facts.title)
    return dataclasses.replace(facts, license=settings.license, language=settings.language)
