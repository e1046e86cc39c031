"""Stage: checkpoint -> a directory that `transformers` loads; refuses if the two implementations differ."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch

from bertkit.config import to_mapping
from bertkit.errors import InputError
from bertkit.files import building_dir, read_json, to_json
from bertkit.interop import card, huggingface, onnx, parity, reference, sentence_transformers, tensorflow
from bertkit.interop.load import load_tokenizer, resolve_model_dir, write_model
from bertkit.model.config import PRETRAINING_HEADS, TASK_HEADS
from bertkit.model.heads import BertWithHeads
from bertkit.run_dir import run_of
from bertkit.settings import ExportSettings

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
    shaping = {**to_mapping(settings), "output_dir": None, "checkpoint": None}
    identity = {"settings": shaping, "source_sha256": huggingface.hashes_of(source)}
    final = Path(settings.output_dir)
    if final.exists() and not final.is_dir():
        raise InputError(f"output_dir={final} is a file; choose a directory")
    if final.exists() and any(final.iterdir()):
        done = final / CERTIFICATE
        if not done.is_file() or read_json(done).get("export") != identity:
            raise InputError(f"output_dir={final} holds another export or something else; choose another one")
        print(f"done already: {final} holds this export")
        return
    model = _load(settings, source)
    tokenizer = load_tokenizer(source)
    with building_dir(final) as partial:
        write_model(model, tokenizer, partial, _more_files(settings, source, model))
        reference.same_ids(partial, parity.TEXTS)
        result = parity.certificate(partial, rewrite=False)
        worst = parity.worst_failure(result, with_rounded_gradients=False)
        if worst is not None:
            raise InputError(
                f"{settings.checkpoint}: not exported, for it differs from transformers, most in {worst['dtype']} "
                f"{worst['what']} (by {worst['max_abs']:.1e}); see bertkit verify"
            )
        if settings.google:
            _write_google(partial, model)
        if settings.onnx:
            result["onnx"] = onnx.write_onnx(partial, result["architecture"], model.bert.pooler is not None)
        (partial / CERTIFICATE).write_text(to_json({**result, "export": identity}), encoding="utf-8")
    print(parity.in_one_screen(result))
    print(f"exported {result['architecture']} to {final}")
    if result["architecture"] == "BertModel" and model.bert.pooler is None:
        print(
            "it has no pooler, which was not trained: load it with AutoModel.from_pretrained(..., add_pooling_layer=False)"
        )


def _load(settings: ExportSettings, source: Path) -> BertWithHeads:
    """Load the heads that are asked for, and none that the checkpoint does not hold."""
    if settings.head == "task":
        task_heads = tuple(head for head in huggingface.load(source)[0].heads if head in TASK_HEADS)
        if len(task_heads) != 1:
            raise InputError(f"checkpoint={settings.checkpoint} has no task head; it holds {_held(source)}")
        return huggingface.load(source, task_heads)[0]
    heads, with_pooler = HEADS[settings.head]
    model, report = huggingface.load(source, heads, with_pooler)
    if report.new:
        raise InputError(
            f"checkpoint={settings.checkpoint} has no weights for head={settings.head}; it holds {_held(source)}"
        )
    return model


def _held(source: Path) -> str:
    model, _ = huggingface.load(source)
    return ", ".join(model.heads) or "the encoder only"


def _more_files(settings: ExportSettings, source: Path, model: BertWithHeads) -> dict[str, str]:
    """The card, and what other layouts need beside the Hugging Face files."""
    files = {"README.md": card.model_card(model, _facts(settings, source))}
    if settings.sentence_transformers is not False:
        if model.heads:
            raise InputError(f"sentence_transformers=true needs head=encoder; this has {', '.join(model.heads)}")
        pooling = sentence_transformers.read_pooling(source) or sentence_transformers.Pooling()
        if isinstance(settings.sentence_transformers, str):
            pooling = dataclasses.replace(pooling, mode=settings.sentence_transformers)
        config = model.config
        files |= sentence_transformers.layout_files(pooling, config.hidden_size, config.max_position_embeddings)
    return files


def _write_google(directory: Path, model: BertWithHeads) -> None:
    """Add the files of google-research/bert, and read them back."""
    if set(model.heads) & {"token", "choice"}:
        raise InputError(f"google=true: google-research/bert has no {', '.join(model.heads)} head; export another one")
    tensors = huggingface.tensors_of(model)
    tensorflow.google_files(directory, model.config, tensors)
    again, _ = tensorflow.read_weights(directory / tensorflow.NAME)
    prefix = "" if model.heads else "bert."
    assert set(again) == {prefix + name for name in tensors}
    assert all(torch.equal(again[prefix + name], tensor) for name, tensor in tensors.items())


def _facts(settings: ExportSettings, source: Path) -> card.CardFacts:
    """What is known of the run that the checkpoint comes from: its settings, and its results if it is the last one."""
    facts = card.CardFacts(title=f"BERT ({settings.head or 'all heads'})")
    run_dir = run_of(settings.checkpoint)
    if run_dir is not None:
        manifest = read_json(run_dir / "manifest.json")
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
        facts = card.pretraining_facts({**identity, "steps": steps}, text, results, facts.title)
    return dataclasses.replace(facts, license=settings.license, language=settings.language)
