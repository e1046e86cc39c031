"""Exports, loaded by `transformers` in a process that cannot import bertkit."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LOADER = """
import json, logging, sys, warnings
sys.path[:] = [path for path in sys.path if path]
sys.modules["bertkit"] = None
messages, results = [], []
handler = logging.Handler(logging.WARNING)
handler.emit = lambda record: messages.append(record.getMessage())
logging.getLogger().addHandler(handler)
cases, texts = json.loads(sys.argv[1])
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import torch, transformers
    logging.getLogger("transformers").addHandler(handler)
    transformers.logging.disable_progress_bar()
    for name, directory in cases:
        del messages[:]
        if not hasattr(transformers, name):
            results.append({})
            continue
        model, info = getattr(transformers, name).from_pretrained(directory, output_loading_info=True)
        tokenizers, batches = [], []
        if isinstance(texts, dict):
            batches.append({key: torch.tensor(value) for key, value in texts.items()})
        else:
            tokenizers.append(transformers.AutoTokenizer.from_pretrained(directory))
            if transformers.__version__ < "5":
                tokenizers.append(transformers.AutoTokenizer.from_pretrained(directory, use_fast=False))
        batches += [dict(tokenizer(texts, padding=True, return_tensors="pt")) for tokenizer in tokenizers]
        batch = batches[0]
        if "Choice" in name:
            batch = {key: value.view(2, 2, -1) for key, value in batch.items()}
        with torch.no_grad():
            out = model.eval()(**batch)
        results.append({
            "class": type(model).__name__, "version": transformers.__version__, "messages": list(messages),
            "missing": sorted(info["missing_keys"]), "unexpected": sorted(info["unexpected_keys"]),
            "mismatched": sorted(map(str, info["mismatched_keys"])),
            "ids": [each["input_ids"].tolist() for each in batches],
            "tokenizers": [type(each).__name__ for each in tokenizers],
            "outputs": {key: value.tolist() for key, value in out.items() if torch.is_tensor(value)},
        })
warned = [str(w.message) for w in caught if "transformers" in w.filename and "pytree" not in str(w.message)]
print(json.dumps([results, warned]))
"""


def loaded_elsewhere(
    cases: Sequence[tuple[str, Path]], texts: Sequence[str] | dict[str, Any], folder: Path, **variables: str
) -> list[dict[str, Any]]:
    """Load each directory by the class named beside it, without any warning from transformers; the result is empty if it has no such class.

    `texts` may be a batch, for directories without a tokenizer.
    """
    value = json.dumps([[(name, str(directory)) for name, directory in cases], texts])
    command = [sys.executable, "-c", LOADER, value]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env={**os.environ, **variables})
    assert done.returncode == 0, done.stderr
    assert "error" not in done.stderr.lower()
    results, warnings = json.loads(done.stdout.splitlines()[-1])
    assert warnings == []
    assert len(results) == len(cases)
    return list(results)
