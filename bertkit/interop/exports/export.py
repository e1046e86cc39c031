"""An export: a model in the files of `transformers`, and of other libraries beside them, published only if they compute the same."""

import hashlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bertkit.base.errors import InputError
from bertkit.base.files import LOCK, building_dir, sha256_file, to_json
from bertkit.base.text_files import JsonObject, read_json
from bertkit.base.typed_settings import checked, refuse
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.interop.exports import onnx
from bertkit.interop.exports.card import ONE_BEFORE, CardFacts, model_card, predicts_before
from bertkit.interop.google.checkpoint import release_problems, write_release
from bertkit.interop.hugging_face import generation_json
from bertkit.interop.hugging_face.config_json import is_decoder, require_bert
from bertkit.interop.hugging_face.directory import tensors_of, write_model
from bertkit.interop.model_dir import hashes_of
from bertkit.interop.parity.certificate import summary_of, worst_failure
from bertkit.interop.parity.comparison import compare, load_reference
from bertkit.interop.sentence_transformers.folder import Pooling
from bertkit.interop.sentence_transformers.layout import layout_files, step_files
from bertkit.model.heads import BertWithHeads

CERTIFICATE = "parity.json"


@dataclass(frozen=True)
class Export:
    """What a directory shall hold; raises InputError for a format that cannot hold this model."""

    model: BertWithHeads
    tokenizer: Tokenizer
    name: str  # of the model, in messages
    source: Path  # its files
    facts: CardFacts
    google: bool  # add the files of google-research/bert
    onnx: bool | Literal["int8"]  # add the model in ONNX format, also with numbers of 8 bits
    pooling: Pooling | None  # add the files of sentence-transformers, with this pooling
    search: str | None = None  # the content of generation_config.json, of a model whose source has no such file

    def __post_init__(self) -> None:
        require_bert(self.model, f"model_dir={self.name}")
        heads, with_onnx = self.model.heads, bool(self.onnx)
        no_head = f"sentence_transformers=true needs head=encoder; this has {', '.join(heads)}"
        of_release = release_problems(self.model, self.tokenizer) if self.google else []
        refuse(
            self.pooling is not None and bool(heads) and no_head,
            [f"google=true: google-research/bert {problem}; leave it out" for problem in of_release],
            with_onnx and "generation" in heads and "onnx=true: generation needs two graphs and a search; leave it out",
            with_onnx
            and is_decoder(self.model.config)
            and "onnx=true: torch cannot export attention.pattern=causal; leave it out",
        )
        if with_onnx:
            onnx.check_installed()

    def is_in(self, final: Path) -> bool:
        """Return whether a directory holds this export; raises InputError if it holds anything else, or a file was changed."""
        if not final.exists() or not any(final.iterdir()):
            return False
        content = read_json(final / CERTIFICATE) if (final / CERTIFICATE).is_file() else None
        export, identity = content.get("export") if isinstance(content, dict) else None, self._identity()
        if not isinstance(export, dict) or {key: export.get(key) for key in identity} != identity:
            held = "other files" if content is None else "an export of another model or with other settings"
            raise InputError(f"output_dir={final} holds {held}; choose another one")
        before, now = checked(dict[str, str], export.get("files"), final / CERTIFICATE), _file_hashes(final)
        changed = sorted(name for name in {*before, *now} - {CERTIFICATE} if before.get(name) != now.get(name))
        if changed:
            raise InputError(f"output_dir={final}: {changed[0]} changed since it was exported; remove the directory")
        return True

    def write(self, final: Path) -> JsonObject:
        """Write the directory, read it with `transformers`, compare, and publish it; return the certificate.

        Raises InputError if the two implementations differ; no directory is left then.
        """
        model, copied = self.model, self._copied()
        with building_dir(final.resolve()) as partial:
            write_model(model, self.tokenizer, partial, self._text_files())
            for name, path in copied.items():
                (partial / name).parent.mkdir(exist_ok=True)
                shutil.copyfile(path, partial / name)
            theirs = load_reference(partial, model)
            result = self._certified(compare(partial, model, theirs))
            if self.google:
                write_release(partial, model.config, tensors_of(model))
            if self.onnx:
                result["onnx"] = onnx.write_onnx(partial, model, theirs, with_int8=self.onnx == "int8")
            result["file_sha256"] = hashes_of(partial)  # again: other layouts add files and may change config.json
            result["export"] = {**self._identity(), "files": _file_hashes(partial)}
            (partial / CERTIFICATE).write_text(to_json(result), encoding="utf-8")
        return result

    def notes(self, result: JsonObject, final: Path) -> Iterator[str]:
        """Yield lines about an export in `final` with this certificate."""
        yield from summary_of(result).split("\n")
        yield f"exported {result['architecture']} to {final}"
        if self.onnx:
            yield from onnx.describe(result["onnx"])
        if self.onnx == "int8":
            yield "measure the loss by int8 on your own data"
        yield f"to put it on the hub: hf upload YOUR_NAME/{final.name} {final}"
        if result["architecture"] == "BertModel" and self.model.bert.pooler is None:
            yield "no pooler was trained; load the model with AutoModel.from_pretrained(..., add_pooling_layer=False)"
        if predicts_before(self.model):
            yield ONE_BEFORE
        if self.google and self.model.config.hidden_act == "gelu":
            yield "the model uses the exact gelu; the newest google-research/bert computes the tanh approximation"

    def _identity(self) -> JsonObject:
        """Return what tells this export from another."""
        texts = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in self._text_files().items()}
        pooler = [] if self.model.bert.pooler is None else ["pooler"]
        return {
            "heads": [*self.model.heads, *pooler],
            "formats": [self.google, self.onnx, self.pooling is not None],
            "source_sha256": hashes_of(self.source),
            "layout_sha256": texts | {name: sha256_file(path) for name, path in self._copied().items()},
        }

    def _text_files(self) -> dict[str, str]:
        """Return the texts of the model card and of the files for sentence-transformers, by name."""
        card, config = {"README.md": model_card(self.model, self.facts)}, self.model.config
        if self.search is not None:
            card[generation_json.FILE] = self.search
        if self.pooling is None:
            return card
        return card | layout_files(self.pooling, config.hidden_size, config.max_position_embeddings)

    def _copied(self) -> dict[str, Path]:
        search = self.source / generation_json.FILE
        is_kept = search.is_file() and not {"generation", "next_token"}.isdisjoint(self.model.heads)
        return ({search.name: search} if is_kept else {}) | ({} if self.pooling is None else step_files(self.pooling))

    def _certified(self, result: JsonObject) -> JsonObject:
        """Return the certificate of the written directory; raises InputError if it differs from `transformers`."""
        worst = worst_failure(result)
        if worst is not None:
            raise InputError(
                f"{self.name}: not exported: it differs from transformers, most in {worst['dtype']} {worst['what']} "
                f"(by {worst['max_abs']:.1e}); see bertkit verify"
            )
        if result["tokenizer_fault"]:
            raise InputError(f"{self.name}: not exported: {result['tokenizer_fault']}")
        return result


def _file_hashes(directory: Path) -> dict[str, str]:
    files = sorted(path for path in directory.rglob("*") if path.is_file() and path.name != LOCK)
    return {path.relative_to(directory).as_posix(): sha256_file(path) for path in files}
