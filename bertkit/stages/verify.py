"""Stage: compare a model with the Hugging Face implementation, and write a parity certificate."""

import sys
from pathlib import Path

from bertkit.base.errors import ParityError, StorageError, listed, say
from bertkit.base.files import to_json
from bertkit.base.text_files import JsonObject
from bertkit.interop.model_dir import resolve_model_dir
from bertkit.interop.parity import certificate
from bertkit.interop.parity.comparison import certify
from bertkit.run.outputs import check_output, is_stream, write_output
from bertkit.settings.verify import VerifySettings


def run(settings: VerifySettings) -> int:
    """Write or print the certificate; return 1 if the implementations differ, or the model has changed."""
    result = scores(settings)
    if settings.output is None:
        say(*to_json(result).splitlines())
    say(*_summary(result), file=sys.stderr if settings.output is None else sys.stdout)
    return 0 if result["within_tolerance"] else 1


def scores(settings: VerifySettings) -> JsonObject:
    """Return the certificate, and write it to `output=`, if that is set.

    If the directory or `output=` has a certificate already, the hashes of tensors and files must also equal those in it.

    Raises:
        ParityError: the weights are damaged.
    """
    directory = resolve_model_dir(settings.model_dir)
    kept = _kept(settings)
    known = [directory / "parity.json", *kept]
    certified = [certificate.read_certificate(each) for each in known if each.is_file()]
    try:
        result = certify(directory, settings.seed, settings.sequences)
    except StorageError as error:  # damaged weights
        raise ParityError(error) from None
    changed = sorted({name for before in certified for name in certificate.changes(before, result)})
    result["changed_since_certified"] = changed
    result["within_tolerance"] = result["within_tolerance"] and not changed
    if settings.output is not None and not kept and not changed:
        write_output(settings.output, to_json(result))
    return result


def _kept(settings: VerifySettings) -> list[Path]:
    """Return the certificate in `output=`, if it is to be compared; otherwise check that it can be written."""
    if settings.output is None:
        return []
    path = Path(settings.output)
    if path.is_file() and not is_stream(path) and not settings.overwrite:
        return [path]
    check_output(path, settings.overwrite)
    return []


def _summary(result: JsonObject) -> list[str]:
    changed = result["changed_since_certified"]
    lines = [f"changed since it was certified: {listed(changed, ', ', 4)}"] if changed else []
    return [*certificate.summary_of(result).split("\n"), *lines]
