"""Stage: any model against the Hugging Face implementation -> a parity certificate."""

from __future__ import annotations

import sys
from pathlib import Path

from bertkit.errors import InputError
from bertkit.files import read_json, to_json, write_durably
from bertkit.interop import parity
from bertkit.interop.load import resolve_model_dir
from bertkit.settings import VerifySettings


def run(settings: VerifySettings) -> int:
    """Write the certificate; give 0 when everything is within tolerance, else 1.

    A certificate that stands in the directory, or at `output=`, is checked too: its hash of every tensor must still
    be right.
    """
    directory = resolve_model_dir(settings.model_dir)
    if settings.output is not None and Path(settings.output).is_dir():
        raise InputError(f"output={settings.output} is a directory; name a file")
    changed = []
    for known in (directory / "parity.json", Path(settings.output) if settings.output else None):
        if known is not None and known.is_file():
            changed += _changed_tensors(known, directory)
    result = parity.certificate(directory, settings.seed, settings.sequences)
    result["changed_since_certified"] = sorted(set(changed))
    result["within_tolerance"] = result["within_tolerance"] and not changed
    summary = parity.in_one_screen(result)
    if changed:
        summary += (
            f"\n{len(set(changed))} tensors changed since they were certified: {', '.join(sorted(set(changed))[:4])}"
        )
    if settings.output is None:
        print(to_json(result), end="")
        print(summary, file=sys.stderr)
    else:
        if not changed:
            Path(settings.output).parent.mkdir(parents=True, exist_ok=True)
            write_durably(Path(settings.output), to_json(result))
        print(summary)
    return 0 if result["within_tolerance"] else 1


def _changed_tensors(certificate: Path, directory: Path) -> list[str]:
    """List the tensors whose hash is not the certified one."""
    content = read_json(certificate)
    if not isinstance(content, dict) or content.get("format") != parity.FORMAT:
        raise InputError(f"{certificate}: holds something else than a certificate; choose another file")
    certified = content["tensor_sha256"]
    present = parity.tensor_hashes(directory)
    return [name for name in {*certified, *present} if certified.get(name) != present.get(name)]
