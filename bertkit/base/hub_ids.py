"""Checks hub model names, which models are at hand, and quickly whether the hub is reachable; its own libraries wait half a minute."""

import contextlib
import functools
import os
import re
import sys
from pathlib import Path

from bertkit.base.errors import InputError, listed, refusing

TIMEOUT_SECONDS = 1.2
DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"  # to fine-tune: 22.6 M parameters, which learn from few examples (recipes/glue, recipes/own_data)
# usual names of local folders
_FOLDERS = re.compile("runs?|out|outputs?|models?|checkpoints?|data|tmp|exp|experiments")


def is_id(name: str) -> bool:
    """Return whether a name is a hub id: `organisation/model`, or `bert-...` without an organisation; `@` and a branch, tag or commit may follow.

    A name is a path if its first part is an existing folder, or a usual folder name.
    """
    if not re.fullmatch(r"[^@]*(@\w[\w./-]*)?", name):
        return False
    name, _, _ = name.partition("@")
    organisation, has_organisation, _ = name.partition("/")
    if not has_organisation:
        return re.fullmatch(r"bert-[\w.-]+", name) is not None
    is_folder = _FOLDERS.fullmatch(organisation.lower()) or Path(organisation).exists()
    return not is_folder and re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name) is not None


def path_of(model_dir: object, setting: str = "model_dir") -> Path:
    """Return a path from Python, such as a model directory; raise InputError if it is neither text nor a path."""
    named, expected = f"{setting}={model_dir!r:.80}", "expected a path, a run or a hub id"
    with (
        refusing(OSError, lambda error: f"{named}: {error.strerror}"),  # a name that is too long
        # not text, a text that cannot be a name, a user without a home
        refusing((TypeError, ValueError, RuntimeError), lambda _: f"{named}: {expected}"),
    ):
        path = Path(model_dir or None).expanduser()  # type: ignore[arg-type]  # "" would mean the working directory
        path.resolve().exists()
        return path


def check_model(name: str, setting: str) -> None:
    """Raise InputError unless a hub model is cached or the hub is reachable; does not import torch."""
    if not is_id(name) or Path(name).exists():
        return
    repository, _, _ = name.partition("@")
    if not (_cache() / f"models--{repository.replace('/', '--')}").is_dir() and is_offline():
        raise missing_model_error(name, setting, "no network, or HF_HUB_OFFLINE is set")


def check_directory(name: str, setting: str) -> None:
    """Raise InputError if a model that is none of the hub is missing; a TensorFlow checkpoint may be named by its prefix."""
    path = path_of(name, setting)
    if not is_id(name) and not path.exists() and not path.with_name(f"{path.name}.index").exists():
        raise missing_directory_error(name, setting)


def missing_directory_error(name: str, setting: str) -> InputError:
    """Return the error for a model in a directory that does not exist."""
    return InputError(
        f"{setting}={name}: no such directory; expected a run, a checkpoint, a Hugging Face model, a TensorFlow checkpoint, or a "
        "hub id such as google-bert/bert-base-uncased"
    )


def _cache() -> Path:
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "huggingface")
    return Path(os.environ.get("HF_HUB_CACHE") or Path(home, "hub")).expanduser()


def models_at_hand() -> list[str]:
    """List the models that a run can start from: runs below the working directory, and models in the cache of the hub."""
    runs = [str(path.parents[1]) for depth in ("*", "*/*") for path in Path().glob(f"{depth}/model/config.json")]
    cached = {path.parents[2].name for path in _cache().glob("models--*/snapshots/*/config.json")}
    return sorted(runs) + sorted(name.removeprefix("models--").replace("--", "/", 1) for name in cached)


def missing_model() -> str:
    """Return the message about `model_dir=`, which is not set."""
    at_hand = models_at_hand()
    models = f"(at hand: {listed(at_hand, ', ')})" if at_hand else f"to a BERT, such as {DEFAULT_MODEL} on the hub"
    return f"missing value: set model_dir= {models}"


def missing_model_error(name: str, setting: str, why: str) -> InputError:
    """Return the error for a missing model."""
    return InputError(
        f"{setting}={name}: no such directory, and no hub model that is cached or can be downloaded ({why}); give a local "
        "directory, or download the model on a machine with a network and set HF_HOME to that cache"
    )


@functools.cache
def is_offline() -> bool:
    """Return whether the hub, or its proxy, cannot be reached; if so, set the hub's libraries to offline mode."""
    import socket
    import threading
    import urllib.parse
    import urllib.request

    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    url = urllib.parse.urlsplit(endpoint if "//" in endpoint else f"//{endpoint}")
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return True
    proxy = None if urllib.request.proxy_bypass(url.hostname or "") else urllib.request.getproxies().get(url.scheme)
    if proxy is not None:
        url = urllib.parse.urlsplit(proxy if "//" in proxy else f"//{proxy}")
    answered, over = threading.Event(), threading.Event()

    def ask() -> None:  # in a thread, because name resolution has no timeout
        with contextlib.suppress(OSError, ValueError):
            port = url.port or (80 if url.scheme == "http" else 443)
            socket.create_connection((url.hostname or "", port), TIMEOUT_SECONDS).close()
            answered.set()
        over.set()

    threading.Thread(target=ask, daemon=True).start()
    over.wait(TIMEOUT_SECONDS)
    if answered.is_set():
        return False
    os.environ["HF_HUB_OFFLINE"] = "1"  # libraries that are imported later read it
    for name in ("huggingface_hub.constants", "datasets.config"):
        if name in sys.modules:
            sys.modules[name].HF_HUB_OFFLINE = True  # type: ignore[attr-defined]
    return True
