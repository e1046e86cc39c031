"""The files of a checkpoint of google-research/bert: where they are in a directory."""

import re
from pathlib import Path

from bertkit.base.errors import InputError

CONFIG_FILES = ("bert_config.json", "config.json")


def index_file(prefix: Path) -> Path:
    """Return the path of a checkpoint's index."""
    return Path(f"{prefix}.index")


def find_checkpoint(path: Path) -> Path | None:
    """Return the prefix of the checkpoint in a directory, or at a prefix such as `DIR/bert_model.ckpt`; None without one.

    If a directory has several checkpoints, its file `checkpoint` names the newest. If it does not, InputError is raised.
    """
    if not path.is_dir():
        prefix = Path(str(path).removesuffix(".index"))
        return prefix if index_file(prefix).is_file() else None
    names = [file.name.removesuffix(".index") for file in sorted(path.glob("*.index"))]
    if len(names) <= 1:
        return path / names[0] if names else None
    state = path / "checkpoint"
    text = state.read_text("utf-8", "replace") if state.is_file() else ""
    newest = re.search(r'^model_checkpoint_path:\s*"(.*)"', text, re.MULTILINE)
    chosen = Path(newest[1]).name if newest else None  # the directory may have been moved since then
    if chosen in names:
        return path / chosen
    why = f"the file checkpoint names {chosen}, which is missing" if chosen else "no file checkpoint chooses one"
    raise InputError(f"{path}: holds the checkpoints {', '.join(names)}, and {why}; name one: {path / names[0]}")


def config_file(prefix: Path) -> Path:
    """Find `bert_config.json`, or `config.json`, beside a checkpoint."""
    for name in CONFIG_FILES:
        if (prefix.parent / name).is_file():
            return prefix.parent / name
    raise InputError(f"{prefix}: no bert_config.json beside this checkpoint; copy it from the original model")
