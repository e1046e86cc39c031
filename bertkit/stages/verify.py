"""Stage: compare a model with the Hugging Face implementation, and write a parity certificate."""

import sys
from pathlib import Path
from typing import Any

from bertkit.base.errors import ParityError, StorageError, say
from bertkit.base.files import to_json
from bertkit.interop.load import resolve_model_dir
from bertkit.interop.parity import certificate
from bertkit.interop.parity.comparison import certify
from bertkit.run.outputs import check_output, is_stream, write_output
from bertkit.settings.verify import VerifySettings


def run(settings: VerifySettings) -> dict[str, Any]:
    """Write the certificate, and return it.

    If the directory or `output=` has a certificate already, the hashes of tensors and files must also equal those in it.

    Raises:
        ParityError: the weights are damaged.
    """
    directory = resolve_model_dir(settings.model_dir)
    known = [directory / "parity.json"]
    if settings.output is not None:
        path = Path(settings.output)
        is_kept = path.is_file() and not is_stream(path) and not settings.overwrite
        if is_kept:
            known.append(path)
        else:
            check_output(path, settings.overwrite)
    certified = [certificate.read_certificate(path) for path in known if path.is_file()]
    try:
        result = certify(directory, settings.seed, settings.sequences)
    except StorageError as error:  # damaged weights
        raise ParityError(error) from None
    changed = sorted({name for before in certified for name in certificate.changes(before, result)})
    result["changed_since_certified"] = changed
    result["within_tolerance"] = result["within_tolerance"] and not changed
    summary = certificate.summary_of(result)
    if changed:
        more = f" and {len(changed) - 4} more" if len(changed) > 4 else ""
        summary += f"\nchanged since it was certified: {', '.join(changed[:4])}{more}"
    if settings.output is None:
        say(*to_json(result).splitlines())
        say(*summary.split("\n"), file=sys.stderr)
    else:
        if not is_kept and not changed:
            write_output(settings.output, to_json(result))
        say(*summary.split("\n"))
    return result
