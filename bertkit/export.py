"""Stage: checkpoint -> a directory that `transformers` loads; refuses if the two implementations differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bertkit.config import to_mapping
from bertkit.errors import InputError
from bertkit.files import building_dir, read_json, sha256_file, to_json
from bertkit.interop import card, huggingface, parity
from bertkit.interop.load import load_packed, load_tokenizer, resolve_model_dir, write_model
from bertkit.settings import ExportSettings

HEADS = {"pretraining": ("masked_lm", "next_sentence"), "masked_lm": ("masked_lm",), "encoder": ()}
CERTIFICATE = "parity.json"


def run(settings: ExportSettings) -> None:
    """Export, reload with `transformers`, compare, and only then publish the directory.

    Raises:
        InputError: the checkpoint lacks the head, the directory holds something else, or the comparison fails.
    """
    source = resolve_model_dir(settings.checkpoint)
    weights = {
        path.name: sha256_file(path) for path in sorted(source.glob("*.safetensors")) if "optimizer" not in path.name
    }
    identity = {"settings": {**to_mapping(settings), "output_dir": None, "checkpoint": None}, "weights": weights}
    final = Path(settings.output_dir)
    if final.exists() and any(final.iterdir()):
        done = final / CERTIFICATE
        if not done.is_file() or read_json(done).get("export") != identity:
            raise InputError(f"output_dir={final} holds another export or something else; choose another one")
        print(f"done already: {final} holds this export")
        return
    heads = None if settings.head is None else HEADS[settings.head]
    keep_pooler = {"masked_lm": False}.get(settings.head or "")
    model, report = load_packed(source, heads, with_pooler=keep_pooler)
    if report.new:
        raise InputError(
            f"checkpoint={settings.checkpoint} has no weights for head={settings.head}; it holds {_held(source)}"
        )
    tokenizer = load_tokenizer(source)
    readme = card.model_card(
        model, f"BERT ({settings.head or 'all heads'})", _facts(settings), _results(settings), settings.license, settings.language
    )  # fmt: skip
    with building_dir(final) as partial:
        write_model(model, tokenizer, partial, {"README.md": readme})
        parity.same_ids(partial)
        result = parity.certificate(partial)
        if not result["within_tolerance"]:
            raise InputError(
                f"{settings.checkpoint}: the exported model differs from transformers\n{parity.in_one_screen(result)}"
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


def _facts(settings: ExportSettings) -> dict[str, Any]:
    """What is known of the run that the checkpoint comes from."""
    manifest = _run_file(settings.checkpoint, "manifest.json")
    if manifest is None or "identity" not in manifest:
        return {}
    identity = manifest["identity"]
    return {
        "text": manifest["corpus"]["description"],
        "steps": identity["steps"],
        "global batch": f"{identity['batch']['sequences']} sequences",
        "optimizer": identity["optimizer"],
        "seed": identity["seed"],
    }


def _results(settings: ExportSettings) -> dict[str, Any]:
    return _run_file(settings.checkpoint, "eval.json") or {}


def _run_file(checkpoint: str, name: str) -> dict[str, Any] | None:
    """A file of the run that holds the checkpoint, where there is one."""
    for directory in (Path(checkpoint), *Path(checkpoint).resolve().parents[:2]):
        if (directory / "config.yaml").is_file() and (directory / name).is_file():
            content: dict[str, Any] = read_json(directory / name)
            return content
    return None
