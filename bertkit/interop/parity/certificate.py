"""The parity certificate, the result of a comparison with `transformers`: read it, summarise it, check a model against it."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from bertkit.base.errors import InputError, ParityError
from bertkit.base.hub_ids import path_of
from bertkit.base.text_files import JsonObject, read_json
from bertkit.base.typed_settings import checked, to_mapping
from bertkit.interop.hugging_face.architecture import writer_of
from bertkit.interop.hugging_face.directory import packed
from bertkit.interop.padded import PaddedBert
from bertkit.model.heads import BertWithHeads

FORMAT = "bertkit parity certificate 2"


@dataclass(frozen=True)
class Certified:
    """What a certificate says of a model."""

    tensor_sha256: dict[str, str]
    file_sha256: dict[str, str]
    config: JsonObject
    within_tolerance: bool


def identity_of(model: BertWithHeads) -> JsonObject:
    """Return a model's configuration, without unused groups of settings, and a hash of every weight."""
    unused = ["head"] if model.config.variant else ["attention", "norm", "pooling", "head"]
    unused += [] if model.config.decoder else ["decoder"]
    config = {key: value for key, value in to_mapping(model.config).items() if key not in unused}
    return {"config": config, "tensor_sha256": {name: _hash(x) for name, x in sorted(full_tensors(model).items())}}


def _hash(tensor: Tensor) -> str:
    """Hash the shape of a tensor and its values as float32."""
    digest = hashlib.sha256(f"{tuple(tensor.shape)} ".encode())
    digest.update(tensor.detach().cpu().float().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def full_tensors(model: BertWithHeads) -> dict[str, Tensor]:
    """Return every parameter by its full Hugging Face name, with the prefix `bert.` also for an encoder without heads."""
    architecture = writer_of(model.config, model.heads)
    return {architecture.full_name(name): parameter for name, parameter in model.named_parameters()}


def read_certificate(path: Path) -> Certified:
    """Read and check the JSON of a certificate."""
    match content := read_json(path):
        case {"format": version} if version == FORMAT:
            return checked(Certified, content, path, "choose another file")
    raise InputError(f"{path}: not a certificate of this version; choose another file")


def _changed(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """List the names whose hashes differ, or that only one side has."""
    return sorted({name for name, _ in before.items() ^ after.items()})


def changes(certified: Certified, now: JsonObject) -> list[str]:
    """List the differences between a certificate and one of now for the same model: tensors, tokenizer files, configuration."""
    tensors = _changed(certified.tensor_sha256, now["tensor_sha256"])
    changed = _changed(certified.file_sha256, now["file_sha256"])  # weight files are compared by their tensors
    files = [name for name in changed if re.fullmatch(r".*(?<!\.index)\.json|.*\.txt", name)]
    return tensors + files + ["the configuration"] * (certified.config != now["config"])


def check_certificate(model: PaddedBert | BertWithHeads, certificate_path: str | Path) -> None:
    """Check that a model in memory is the certified one: equal configuration, and every weight equal to the last bit.

    A certificate is the output of `bertkit verify`, or the `parity.json` of an export; the model may have fewer heads.

    Raises:
        ParityError: something differs, or the certified model was not within tolerance.
        InputError: the file is no certificate.
    """
    certified = read_certificate(path_of(certificate_path, "certificate_path"))
    if not certified.within_tolerance:
        raise ParityError(f"{certificate_path}: certifies that the model is not within tolerance")
    now = identity_of(packed(model))
    hashes: dict[str, str] = now["tensor_sha256"]
    prefix = writer_of(packed(model).config, packed(model).heads).prefix
    encoder = re.compile(rf"{re.escape(prefix)}(?!pooler\.).*")
    before = {name: one for name, one in certified.tensor_sha256.items() if name in hashes or encoder.fullmatch(name)}
    changed = _changed(before, hashes)
    if changed:
        raise ParityError(
            f"{len(changed)} tensors differ from {certificate_path}: {', '.join(changed[:4])}; load the model again"
        )
    if certified.config != now["config"]:
        raise ParityError(f"the configuration differs from {certificate_path}; load the model again")


def worst_failure(result: JsonObject) -> JsonObject | None:
    """Return the comparison with the largest relative difference outside the tolerance; None if all are within."""
    rows = [row for row in result["comparisons"] if not row["within_tolerance"]]
    return max(rows, key=lambda row: row["max_rel"], default=None)


def summary_of(result: JsonObject) -> str:
    """Summarise a certificate in a few lines."""
    lines = [f"{result['architecture']} beside transformers {result['versions']['transformers']}"]
    for dtype in ("float64", "float32"):
        for kind in ("weights", "hidden_states", "pooled_output", "logits", "loss", "gradient"):
            rows = [row for row in result["comparisons"] if row["dtype"] == dtype and row["what"].startswith(kind)]
            if not rows:
                continue
            key = "max_rel" if kind == "gradient" else "max_abs"
            worst = max(rows, key=lambda row: row[key])
            mark = "ok " if all(row["within_tolerance"] for row in rows) else "BAD"
            lines.append(
                f"  {mark} {dtype} {kind:<14} {len(rows):>4} compared, worst {worst[key]:.1e} ({worst['what']})"
            )
    ratio = max(row["error"] / row["reference_error"] for row in result["comparisons"] if row.get("reference_error"))
    lines.append(f"  bertkit's rounding error is at most {ratio:.1f} times that of transformers")
    if result["tokenizer_fault"]:
        lines.append(f"  BAD tokenizer: {result['tokenizer_fault']}")
    if result["not_finite"]:
        lines.append(f"  BAD numbers: the model's outputs are not finite; {result['not_finite']}")
    if result["rewritten_because"]:
        lines.append("  compared with a copy that bertkit wrote, because transformers cannot load the directory itself")
    lines.append("within tolerance" if result["within_tolerance"] else "NOT within tolerance")
    return "\n".join(lines)
