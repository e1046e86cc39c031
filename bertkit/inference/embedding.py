"""Texts -> vectors, by pooling the encoder's vectors of a text's tokens.

Texts are sorted by length and packed, so nothing is computed on padding.
"""

import dataclasses
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from bertkit.base.batch import Batch
from bertkit.base.errors import InputError, counted, is_missing, named, not_text, warn
from bertkit.base.hub_ids import path_of
from bertkit.base.processors import check_precision, fit_threads
from bertkit.base.typed_settings import build, refuse, without_none
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.inference.forward import require_finite
from bertkit.inference.pooling import pooled
from bertkit.interop.load import load_packed, load_tokenizer
from bertkit.interop.model_dir import resolve_model_dir
from bertkit.interop.sentence_transformers.folder import Pooling, max_length_of, read_pooling
from bertkit.kernels import fast
from bertkit.kernels.linear import round_weights
from bertkit.model.bert_config import BertConfig
from bertkit.model.heads import BertWithHeads
from bertkit.objectives.losses import DeviceInputs
from bertkit.settings.embed import EmbedSettings
from bertkit.tasks.batching import FeatureBatches
from bertkit.tasks.feature import Feature
from bertkit.tasks.reading.rows import is_frame, iterated, plain_rows
from bertkit.train import micro_batches, processes
from bertkit.train.drawn_ahead import made_ahead

_HALF = re.compile("[\ud800-\udfff]")
TEXTS_AT_ONCE = 4096  # texts tokenized, and sorted by length, together


class TextVectors(NamedTuple):
    """The vectors of texts."""

    vectors: NDArray[np.float32]  # (n, D)
    num_cut: int  # how many texts were cut


class Embedder:
    """An encoder as a function of texts; `load_embedder` makes one.

    Its vectors have `dimension` numbers, D. A forward pass has up to `batch_tokens` tokens; a single text may have more.
    """

    def __init__(
        self,
        model: BertWithHeads,
        tokenizer: Tokenizer,
        pooling: Pooling,
        precision: str,
        batch_tokens: int,
        normalize: bool | None = None,
    ) -> None:
        """Make an embedder of an encoder; `normalize` is what the user asks for, None for what the pooling has."""
        check_pooling(pooling.modes, model.config, "pooling")
        self.model, self.tokenizer, self.pooling = model, tokenizer, pooling
        self.precision, self.batch_tokens, self.normalize = precision, batch_tokens, normalize
        size = model.config.hidden_size * len(pooling.modes)
        for step in pooling.steps:
            given, made = step.sizes or (size, size)
            refuse(given != size and f"{step.folder}: takes vectors of {given} numbers; those before it have {size}")
            step.module.to(next(model.parameters()).device)
            size = made
        self.dimension = min(size, pooling.truncate_dim or size)
        # special tokens in a text stay when it is lower-cased
        tokens = [
            token.content for token in tokenizer.backend.get_added_tokens_decoder().values() if not token.normalized
        ]
        self._kept = re.compile("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))) or "(?!)")

    def __repr__(self) -> str:
        return f"Embedder({self.dimension} numbers, pooling {'+'.join(self.pooling.modes)}, up to {self.max_seq_length} tokens)"

    @property
    def max_seq_length(self) -> int:
        """The largest number of tokens, with [CLS] and [SEP]; further tokens of a text are cut off."""
        longest = self.model.config.max_position_embeddings
        return min(self.pooling.max_length or longest, longest)

    def __call__(self, texts: object) -> NDArray[np.float32]:
        """Return a float32 vector for each text, in the same order, (n, D); for a single text or row, a single vector, (D,).

        Texts are in a list, array, column or generator; of rows, a data frame or a dataset, the column `text` is used, or the
        only one with texts. An empty text has the vector of [CLS] [SEP]. A text that is too long is cut, with a warning.
        Raises InputError if an element is not a text, or it is not clear which column is meant.
        """
        is_single = isinstance(texts, (str, Mapping))
        vectors, num_cut = self.embed(texts_of([texts] if is_single else texts))
        if num_cut:
            warnings.warn(self.cut_warning(num_cut, len(vectors)), stacklevel=2)
        return vectors[0] if is_single else vectors

    encode = __call__  # the name that sentence-transformers has

    def cut_warning(self, num_cut: int, num_texts: int) -> str:
        """Return the warning about texts that were cut."""
        return f"{num_cut:,} of {num_texts:,} texts have more than max_seq_length={self.max_seq_length} tokens and were cut"

    def embed(
        self, texts: Sequence[str | list[int]], normalize: bool | None = None, prompt: str | None = None
    ) -> TextVectors:
        """Return the vectors of texts, or of the ids of their tokens; `normalize` and `prompt` override those of the pooling.

        Raises InputError if an element is neither.
        """
        prompt = self.pooling.prompt if prompt is None else prompt
        normalize = self.normalize if normalize is None else normalize
        is_normal, is_cut = (
            self.pooling.normalize if normalize is None else normalize,
            self.pooling.truncate_dim is not None,
        )
        num_skipped = (
            0 if self.pooling.include_prompt or not prompt else len(self.encode_ids([""], prompt=prompt)[0]) - 1
        )
        refuse(
            num_skipped >= self.max_seq_length - 1
            and f"prompt={prompt!r:.60}: leaves no room for a text in max_seq_length={self.max_seq_length}"
        )
        vectors, num_cut = np.empty((len(texts), self.dimension), np.float32), 0
        device = next(self.model.parameters()).device
        for start, num_cut_here, batches in made_ahead(self._batches(texts, prompt), device.type):
            num_cut += num_cut_here
            for items, batch in batches.batches_of(self.batch_tokens, 0, 1):
                pooled_vectors = text_vectors(self.model, batch, self.pooling, self.precision, num_skipped)
                kept_numbers = _scaled(pooled_vectors, is_normal)[:, : self.dimension]
                # what a user asks for comes after the truncation, unlike the module of the folder
                vectors[start + items] = _scaled(kept_numbers, is_cut and bool(normalize))
        require_finite(bool(np.isfinite(vectors).all()), self.precision)
        return TextVectors(vectors, num_cut)

    def _batches(self, texts: Sequence[str | list[int]], prompt: str) -> Iterator[tuple[int, int, FeatureBatches]]:
        """Yield the number of a part's first text, how many of its texts are cut, and its batches."""
        longest = self.max_seq_length
        for start in range(0, len(texts), TEXTS_AT_ONCE):
            ids = self.encode_ids(texts[start : start + TEXTS_AT_ONCE], start, prompt)
            kept = ([text[0], *self.tokenizer.cut(text[1:-1], longest - 2), text[-1]] for text in ids)
            features = (Feature(place, text, [0] * len(text), None) for place, text in enumerate(kept))
            yield start, sum(len(text) > longest for text in ids), FeatureBatches(features, "sequence")

    def encode_ids(
        self, texts: Sequence[str | list[int]], start: int = 0, prompt: str | None = None, what: str = "texts"
    ) -> list[list[int]]:
        """Return the ids of texts, with [CLS] and [SEP], which are put around given ids, too; the first text has the number `start`.

        `prompt` is written before each text, and its ids before given ones; None: the pooling's own prompt. Messages call the texts `what`.
        """
        prompt = self.pooling.prompt if prompt is None else prompt
        facts = self.tokenizer.facts
        for number, text in enumerate(texts, start):
            _check_text(text, f"{what}[{number}]", facts.size)
        before = self.encode_ids([""], prompt=prompt)[0][1:-1] if prompt and {*map(type, texts)} != {str} else []
        given = [prompt + text for text in texts if isinstance(text, str)]
        encoded = iter(self.tokenizer.encode_texts([*map(self._lowered, given)] if self.pooling.lowercase else given))
        bare = (
            text[1:-1] if isinstance(text, list) and (text[:1], text[-1:]) == ([facts.cls], [facts.sep]) else text
            for text in texts
        )
        return [next(encoded) if isinstance(text, str) else [facts.cls, *before, *text, facts.sep] for text in bare]

    def _lowered(self, text: str) -> str:
        """Lower-case a text, each letter alone, as the library `tokenizers` does: the last sigma of a word is no other letter."""
        parts, ends = self._kept.split(text), [*self._kept.findall(text), ""]
        lowered = (part.replace("Σ", "σ").lower() for part in parts)
        return "".join(f"{part}{kept}" for part, kept in zip(lowered, ends, strict=True))


def _check_text(text: object, where: str, size: int) -> None:
    """Raise InputError for what is neither a text nor the ids of tokens of a tokenizer with so many."""
    match text:
        case str():
            refuse(_HALF.search(text) is not None and f"{where}: contains half of a surrogate pair; remove it")
        case list():
            if wrong := [token for token in text if not 0 <= token < size]:
                raise InputError(f"{where}: token {wrong[0]}: expected ids of the model's tokenizer, 0 to {size - 1}")
        case _:
            raise InputError(f"{where}: {not_text('text', text)}")


def _scaled(vectors: NDArray[np.float32], is_normal: bool) -> NDArray[np.float32]:
    """Scale vectors, (n, D), to length 1 if they shall be."""
    # vectors are not zero, since LayerNorm comes last; 1e-12 is the default of torch's `normalize`
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12) if is_normal else vectors


def texts_of(inputs: object, column: str | int | None = None) -> list[Any]:
    """Return the texts of inputs from Python: of rows, those in their column `text`, or in the only column of texts.

    A missing text is an empty one, with a warning.
    """
    texts = _texts_of(inputs, column)
    if missing := [number for number, text in enumerate(texts) if is_missing(text)]:
        warn(f"{counted(len(missing), 'text')} missing, the first texts[{missing[0]}]; treated as empty")
    return ["" if is_missing(text) else text for text in texts] if missing else texts


def _texts_of(inputs: object, column: str | int | None) -> list[Any]:
    given = inputs if is_frame(inputs) or hasattr(inputs, "column_names") else list(iterated(inputs, "texts"))
    if isinstance(given, list) and not isinstance(next(iter(given), None), Mapping):
        return given
    rows = list(plain_rows(given, "texts"))
    names = next(iter(rows), {})
    types = {name: {type(row.get(name)) for row in rows if not is_missing(row.get(name))} for name in names}
    found = [name for name in names if types[name] == {str}]
    chosen = column if column is not None else "text" if "text" in names or len(found) != 1 else found[0]
    if rows and types.get(str(chosen), {object}) - {str}:
        raise InputError(
            f"texts: no column '{chosen}' (of texts: {named(found)}); pass one of them, as in frame['review']"
        )
    if lacking := next((number for number, row in enumerate(rows, 1) if str(chosen) not in row), None):
        raise InputError(f"texts: row {lacking}: no field '{chosen}'; add it, or leave the row out")
    return [row[str(chosen)] for row in rows]


def check_pooling(modes: Sequence[str], config: BertConfig, setting: str) -> None:
    """Raise InputError for cls pooling with causal attention, where [CLS] attends only to itself."""
    if "cls" in modes and config.attention.pattern == "causal":
        raise InputError(f"{setting}=cls: with attention.pattern=causal [CLS] attends only to itself; use mean")


def pooling_of(directory: Path) -> Pooling:
    """Return the pooling of a sentence-transformers directory; for others the default, a normalized mean.

    Raises InputError if bertkit does not have this kind of pooling.
    """
    return read_pooling(directory) or Pooling(normalize=True, max_length=max_length_of(directory))


def load_embedder(
    model_dir: str | Path,
    pooling: Literal["mean", "cls", "max"] | None = None,
    normalize: bool | None = None,
    *,
    max_seq_length: int | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    precision: Literal["fp32", "bf16", "fp16"] = "fp32",
    batch_tokens: int | None = None,
) -> Embedder:
    """Load any model directory as a function from texts to vectors.

    A sentence-transformers directory has its own pooling, normalization and length; the arguments override them. In fp32 the
    vectors equal those of sentence-transformers' `encode` to 1e-5.

        >>> embed = bertkit.load_embedder(model_dir, pooling="mean", normalize=True)
        >>> vectors = embed(["A cat sits on the mat.", "There is a cat.", "Stocks fell on Monday."])
        >>> vectors.shape == (3, embed.dimension)
        True
        >>> similarity = vectors @ vectors.T  # cosines, as the vectors have length 1
        >>> bool(similarity[0, 1] > similarity[0, 2])
        True

    Args:
        model_dir: a run directory, a checkpoint, a Hugging Face directory, a TensorFlow checkpoint, or a hub id.
        pooling: "mean" or "max" over all tokens, or "cls", the first token; None for the directory's setting, or "mean".
        normalize: whether to scale vectors to length 1; None for the directory's setting, or true.
        max_seq_length: largest number of tokens, with [CLS] and [SEP]; None for the directory's setting, or the model's.
        device: "auto" uses CUDA if it is available.
        precision: precision of the matrix products; vectors are always float32.
        batch_tokens: number of tokens in one forward pass; None for the default of the device.

    Raises:
        InputError: the directory cannot be loaded, or a value is not allowed.
    """
    from bertkit.settings.reading.compose import compose_values

    own: dict[str, object] = {"pooling": pooling, "normalize": normalize, "max_seq_length": max_seq_length}
    own |= {"device": device, "precision": precision, "batch_tokens": batch_tokens, "model_dir": path_of(model_dir)}
    chosen = build(EmbedSettings, compose_values("embed", {"input": "-", "output": "-", **own}))
    check_precision(chosen.precision, chosen.device)
    fit_threads()
    return open_embedder(chosen)


def open_embedder(settings: EmbedSettings) -> Embedder:
    """Load an encoder onto the device; raises InputError as `load_embedder` does."""
    device, directory = processes.choose_device(settings.device), resolve_model_dir(settings.model_dir)
    longest, modes = settings.max_seq_length, settings.pooling and (settings.pooling,)
    changes = without_none({"modes": modes, "max_length": longest})
    pooling = dataclasses.replace(pooling_of(directory), **changes)
    model = load_packed(directory, heads=(), with_pooler=False).model
    tokenizer, config = load_tokenizer(directory), model.config
    refuse(
        tokenizer.vocab_size > config.vocab_size
        and f"model_dir={settings.model_dir}: the tokenizer has {tokenizer.vocab_size} tokens, but the model "
        f"{config.vocab_size}; use a directory with the model's own tokenizer",
        config.too_long("max_seq_length", longest or 0, "max_seq_length"),
    )
    model.use(fast.choose("auto"))
    round_weights(model.bert, settings.precision)
    num_tokens = settings.batch_tokens or micro_batches.AUTO_MICRO_TOKENS[device.type]
    return Embedder(model.eval().to(device), tokenizer, pooling, settings.precision, num_tokens, settings.normalize)


@torch.no_grad()
def text_vectors(
    model: nn.Module, batch: Batch, pooling: Pooling, precision: str = "fp32", num_skipped: int = 0
) -> NDArray[np.float32]:
    """Encode a packed batch of texts, pool the tokens of each text without the first `num_skipped`, and take all steps, (B, D)."""
    inputs = DeviceInputs.of(model, precision)
    only_first = {*pooling.modes} == {"cls"} and num_skipped == 0
    wanted, lengths = (batch.starts, np.ones_like(batch.starts)) if only_first else (None, batch.sequence_lengths)
    with inputs.autocast():
        hidden = model(**inputs.arguments(batch, wanted=wanted)).last_hidden_state[: lengths.sum()].float()  # (S, D)
    vectors = pooled(hidden, torch.from_numpy(lengths).to(inputs.device), pooling.modes, num_skipped)
    for step in pooling.steps:
        vectors = step.module(vectors)
    return vectors.cpu().numpy()
