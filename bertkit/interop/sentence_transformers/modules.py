"""`modules.json` of a folder of sentence-transformers: the steps from a text to a vector, and where the encoder is."""

from dataclasses import dataclass
from pathlib import Path, PurePath

from bertkit.base.text_files import read_json
from bertkit.base.typed_settings import checked, refuse


@dataclass(frozen=True)
class Module:
    """A step from a text to a vector, in `modules.json`."""

    type: str = ""
    path: str = ""
    name: str = ""


def encoder_dir(directory: Path) -> Path:
    """Return the folder of the encoder: `directory`, or the one in it that `modules.json` names, such as `0_Transformer`."""
    if not (directory / "modules.json").is_file():
        return directory
    modules = modules_in(directory)
    return directory / modules[0].path if modules else directory


def root_of(encoder: Path) -> Path:
    """Return the folder of sentence-transformers with this encoder; `encoder` itself if there is none above it."""
    above = encoder.parent
    is_inside = not (encoder / "modules.json").is_file() and (above / "modules.json").is_file()
    return above if is_inside and encoder_dir(above) == encoder else encoder


def modules_in(directory: Path) -> tuple[Module, ...]:
    """Read the modules of a folder; raise InputError for a path outside of it."""
    path = directory / "modules.json"
    modules = checked(tuple[Module, ...], read_json(path), path)
    outside = [m.path for m in modules if PurePath(m.path).is_absolute() or ".." in PurePath(m.path).parts]
    refuse([f"{path}: path {each!r}: expected one inside this directory" for each in outside])
    return modules
