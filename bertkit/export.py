"""Stage: checkpoint -> a directory that `transformers` loads; refuses if the two implementations differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bertkit.config import to_mapping
from bertkit.errors import InputError
from bertkit.files import building_dir, read_json, to_json
from bertkit.interop import card, huggingface, parity, reference
from bertkit.interop.load import load_tokenizer, resolve_model_dir, write_model
from bertkit.run_dir import run_of
from bertkit.settings import ExportSettings

# head= -> the heads to load, and whether the pooler comes along (None: if there is one)
HEADS: dict[str | None, tuple[tuple[str, ...] | None, bool | None]] = {
    None: (None, None),
    "pretraining": (("masked_lm", "next_sentence"), True),
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
    heads, with_pooler = HEADS[settings.head]
    model, report = huggingface.load(source, heads, with_pooler)
    if report.new:
        raise InputError(
            f"checkpoint={settings.checkpoint} has no weights for head={settings.head}; it holds {_held(source)}"
        )
    tokenizer = load_tokenizer(source)
    title = f"BERT ({settings.head or 'all heads'})"
    readme = card.model_card(model, title, *_facts(settings, source), settings.license, settings.language)
    with building_dir(final) as partial:
        write_model(model, tokenizer, partial, {"README.md": readme})
        reference.same_ids(partial, parity.TEXTS)
        result = parity.certificate(partial, rewrite=False)
        worst = parity.worst_failure(result, with_rounded_gradients=False)
        if worst is not None:
            raise InputError(
                f"{settings.checkpoint}: not exported, for it differs from transformers, most in {worst['dtype']} "
                f"{worst['what']} (by {worst['max_abs']:.1e}); see bertkit verify"
            )
        (partial / CERTIFICATE).write_text(to_json({**result, "export": identity}), encoding="utf-8")
    print(parity.in_one_screen(result))
    print(f"exported {result['architecture']} to {final}")
    if settings.head == "encoder" and model.bert.pooler is None:
        print(
            "it has no pooler, which was not trained: load it with AutoModel.from_pretrained(..., add_pooling_layer=False)"
        )


def _held(source: Path) -> str:
    model, _ = huggingface.load(source)
    return ", ".join(model.heads) or "the encoder only"


def _facts(settings: ExportSettings, source: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is known of the run that the checkpoint comes from: its settings, and its results if it is the last one."""
    run_dir = run_of(settings.checkpoint)
    if run_dir is None:
        return {}, {}
    manifest = read_json(run_dir / "manifest.json")
    identity = manifest["identity"]
    step = read_json(source / "state.json")["step"] if (source / "state.json").is_file() else identity["steps"]
    facts = {
        "text": manifest["corpus"]["description"],
        "steps": step if step == identity["steps"] else f"{step} of {identity['steps']}",
        "global batch": f"{identity['batch']['sequences']} sequences",
        "optimizer": identity["optimizer"],
        "seed": identity["seed"],
    }
    is_final = step == identity["steps"] and (run_dir / "eval.json").is_file()
    return facts, read_json(run_dir / "eval.json") if is_final else {}
