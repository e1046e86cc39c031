"""Draw attention: as the page attention.html, or as SVG or PNG of all heads, one head, or an alignment.

The page contains its script and its data, the compressed attention weights. In an alignment the columns are source tokens and
the rows are tokens of the generated text; darker cells have more attention. (In Bahdanau et al. 2015, figure 3, they are white.)
"""

import base64
import html
import math
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertkit.apps.explain.explain import ExplainedWord, Explanation
from bertkit.base.errors import install_extra, refusing, shown
from bertkit.display.page import render
from bertkit.tasks.task import Mark, Verdict

INK, SOFT, BLUE, ORANGE, GREEN = "#1c2128", "#57606a", (31, 111, 235), "#c2510a", "#1a7f37"
BLACK, BROWN = (28, 33, 40), (194, 81, 10)  # INK and ORANGE
ROW, COLUMN, GAP, MARGIN = 18, 130, 150, 24  # one head: a row, a column of tokens, the gap between columns
THUMB, SPACE = 64, 6  # all heads: the size of a head's square, and the space between squares
CELL, LETTER, WIDEST_LINE = 18, 7, 330  # an alignment: size of a cell, mean width of a letter, width of the caption
MAX_NAMED = 64  # a matrix with more tokens has no token names beside it
MIN_WEIGHT = 0.02  # smaller attention weights have no line
MAX_LETTERS = 16  # longer tokens are cut
ZOOM = 2.0  # PNG pixels for each SVG unit


def draw(explanation: Explanation, layer: int | None, head: int | None) -> str:
    """Return the SVG of an alignment, of all heads, or of one head, whose layer and number are from 1."""
    if explanation.alignment is not None:
        return alignment_picture(explanation, layer, head)
    return heads_picture(explanation) if layer is None or head is None else one_head_picture(explanation, layer, head)


def heads_picture(explanation: Explanation) -> str:
    """Draw all heads of all layers, a square each."""
    assert explanation.attentions is not None
    step = THUMB + SPACE
    num_layers, num_heads = explanation.attentions.shape[:2]
    parts = [_label(MARGIN + 30 + (head + 0.5) * step, MARGIN, str(head + 1), "middle") for head in range(num_heads)]
    for layer, heads in enumerate(explanation.attentions):
        top = MARGIN + 10 + layer * step
        parts.append(_label(MARGIN + 22, top + THUMB / 2 + 4, str(layer + 1), "end"))
        parts += [_square(MARGIN + 30 + number * step, top, THUMB, head) for number, head in enumerate(heads)]
    width, height = MARGIN * 2 + 30 + num_heads * step, MARGIN + 16 + num_layers * step
    parts.append(_label(width / 2, height + 12, "columns: heads, rows: layers; darker: more attention", "middle", SOFT))
    return _svg(width, height + MARGIN, parts, "Attention of all heads")


def one_head_picture(explanation: Explanation, layer: int, head: int) -> str:
    """Draw one head as lines between tokens, and as a matrix; layer and head count from 1."""
    assert explanation.attentions is not None
    weights = explanation.attentions[layer - 1, head - 1]
    count, top = len(explanation.tokens), MARGIN + 20
    height = count * ROW
    left, right = MARGIN + COLUMN, MARGIN + COLUMN + GAP
    parts = [_label(MARGIN, MARGIN, f"Layer {layer}, head {head}", more=' font-weight="600"')]
    for query, key in np.argwhere(weights >= MIN_WEIGHT).tolist():
        weight = float(weights[query, key])
        y1, y2 = (top + (place + 0.5) * ROW for place in (query, key))
        parts.append(
            f'<line x1="{left + 4}" y1="{y1}" x2="{right - 4}" y2="{y2}" stroke="rgb{BLUE}" '
            f'stroke-opacity="{weight:.3f}" stroke-width="{0.5 + 2 * weight:.2f}"/>'
        )
    for place, token in enumerate(explanation.tokens):
        y, color = top + (place + 0.5) * ROW + 4, _color(explanation, place)
        parts += [_label(left, y, _short(token), "end", color), _label(right, y, _short(token), "start", color)]
    edge = right + COLUMN + (COLUMN if count <= MAX_NAMED else 0)
    size = max(min(height, 720), 160)
    across = top
    if count <= MAX_NAMED:
        across = top + 90
        cell = size / count
        for place, token in enumerate(explanation.tokens):
            color, middle = _color(explanation, place), (place + 0.5) * cell
            parts.append(_label(edge - 4, across + middle + 4, _short(token), "end", color, min(12.0, cell)))
            turned = f' transform="rotate(-60 {edge + middle:.1f} {across - 5})"'
            parts.append(_label(edge + middle, across - 5, _short(token), "start", color, min(12.0, cell), turned))
    parts.append(_square(edge, across, size, weights))
    width = edge + size + MARGIN + 50
    return _svg(width, max(top + height, across + size) + MARGIN, parts, f"Attention of layer {layer}, head {head}")


def alignment_picture(explanation: Explanation, layer: int | None = None, head: int | None = None) -> str:
    """Draw the alignment of one head, or the mean of a layer's heads, or that mean for all layers; numbers count from 1."""
    assert explanation.alignment is not None
    alignment = explanation.alignment.weights
    assert alignment is not None
    source, target = (
        [_short(token) for token in tokens] for tokens in (explanation.tokens, explanation.alignment.tokens)
    )
    side, above = (LETTER * max(map(len, names)) + 10 for names in (target, source))
    left, size = MARGIN + side, (len(source) * CELL, len(target) * CELL)
    parts: list[str] = []
    top = float(MARGIN)
    for number in range(1, len(alignment) + 1) if layer is None else (layer,):
        heads = alignment[number - 1]
        weights = heads.mean(0) if head is None else heads[head - 1]
        if alignment.shape[:2] != (1, 1):
            title = f"Layer {number}, {'mean of the heads' if head is None else f'head {head}'}"
            parts.append(_label(MARGIN, top, title, more=' font-weight="600"'))
        top += above + CELL
        for place, name in enumerate(target):
            parts.append(_label(left - 5, top + (place + 0.5) * CELL + 4, name, "end"))
        for place, name in enumerate(source):
            x = left + (place + 0.5) * CELL
            parts.append(_label(x, top - 5, name, more=f' transform="rotate(-60 {x:.1f} {top - 5:.1f})"'))
        parts.append(shades(left, top, size, weights.clip(0, 1), BLACK))
        top += size[1] + 2 * MARGIN
    parts.append(_label(MARGIN, top - MARGIN, "columns: input, rows: generated text; white 0, black 1", color=SOFT))
    width = max(left + size[0] + above / 2 + MARGIN, WIDEST_LINE)
    return _svg(width, top, parts, "Alignment of input and generated text")


def _color(explanation: Explanation, place: int) -> str:
    """Return the colour of a token: orange for the target, green for the second text."""
    return ORANGE if place in explanation.target_tokens else GREEN if explanation.segments[place] else INK


def _short(token: str) -> str:
    """Shorten a token, with control characters escaped."""
    token = shown(token)
    return token if len(token) <= MAX_LETTERS else f"{token[: MAX_LETTERS - 1]}…"


def _label(
    x: float, y: float, text: str, anchor: str = "start", color: str = INK, size: float = 12.0, more: str = ""
) -> str:
    """Return a text element; `more` are further SVG attributes."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}" font-size="{size:.3g}"{more} '
        f'unicode-bidi="isolate">{html.escape(text)}</text>'
    )


def _square(x: float, y: float, size: float, weights: NDArray[np.float32]) -> str:
    """Draw attention weights, (T, T), as a square; the darkness is their square root, so that small weights are visible."""
    return shades(x, y, (size, size), np.sqrt(weights.clip(0, 1)), BLUE)


def shades(
    x: float,
    y: float,
    size: tuple[float, float],
    strength: NDArray[np.floating],
    ink: tuple[int, int, int] | NDArray[Any],
) -> str:
    """Draw strengths from 0 to 1, (rows, columns), as pixels of one colour, or each of its own; `size` is (width, height)."""
    paper = np.array([255.0, 255.0, 255.0])
    pixels = np.rint(paper + strength[..., None] * (np.array(ink) - paper)).astype(np.uint8)
    content = base64.b64encode(_encode_png(pixels)).decode()
    place = f'x="{x:.1f}" y="{y:.1f}" width="{size[0]}" height="{size[1]}"'
    return (
        f'<image {place} preserveAspectRatio="none" image-rendering="optimizeSpeed" '
        f'style="image-rendering:pixelated" href="data:image/png;base64,{content}"/>'
        f'<rect {place} fill="none" stroke="#d1d9e0"/>'
    )


def _encode_png(pixels: NDArray[np.uint8]) -> bytes:
    """Encode pixels, (rows, columns, 3), as PNG; the 0 before each row means "no filter".

    Source: PNG specification, third edition, sections 5, 9 and 11.
    """

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    rows, columns, _ = pixels.shape
    lines = np.concatenate([np.zeros((rows, 1), np.uint8), pixels.reshape(rows, -1)], 1)
    head = struct.pack(">IIBBBBB", columns, rows, 8, 2, 0, 0, 0)  # 8 bits each of red, green and blue
    parts = (chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(lines.tobytes(), 9)), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def _svg(width: float, height: float, parts: list[str], title: str) -> str:
    """Return an SVG document with these parts on white."""
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    fonts = "DejaVu Sans, Noto Sans, Helvetica, Arial, sans-serif"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{fonts}"><title>{html.escape(title)}</title>\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def png_writer() -> Callable[[str], bytes]:
    """Return a function that converts SVG to PNG; raises InputError if resvg-py is not installed."""
    missing = f"output=: .png needs resvg-py, which is not installed: {install_extra('view')}, or write .svg"
    with refusing(ImportError, lambda _: missing):
        from resvg_py import svg_to_bytes
    return lambda picture: bytes(svg_to_bytes(svg_string=picture, zoom=ZOOM))


MAX_BESIDE = 300  # letters of a text that are shown before its first mark and after its last one
LEVELS = (255, 127, 63, 31, 15)  # possible numbers of steps from 0 to 1
# the most characters for all weights, and for each weight if there are many; 12 layers with 12 heads and 128 tokens need
# 3 MB, with 512 tokens 20 MB
MAX_CHARACTERS, MAX_CHARACTERS_EACH = 2_700_000, 0.48


def attention_page(explanation: Explanation, model_name: str) -> str:
    """Return attention.html for one input."""
    count, importance = len(explanation.tokens), explanation.head_importance
    values = np.zeros(count) if explanation.attribution is None else explanation.attribution.values
    pieces = [ExplainedWord(token, place, place + 1) for place, token in enumerate(explanation.tokens)]
    layers = f"{explanation.num_layers} layers" + f" of {explanation.num_heads} heads" * (explanation.num_heads > 0)
    aligned = None if explanation.alignment is None else explanation.alignment.weights
    opened = (0, 0) if importance is None else divmod(int(importance.argmax()), importance.shape[1])
    return render(
        "attention.html",
        name=shown(model_name),
        headline=" · ".join(filter(None, (explanation.task, f"{count} tokens", layers))),
        look=explanation,
        parts=None if explanation.verdict is None else _parts(explanation.verdict),
        target=shown(explanation.target or ""),
        pieces=_chips(pieces, values),
        words=_chips(explanation.words or pieces, values),
        opened=opened,
        alignment=None if aligned is None else compress_weights(aligned.copy()),
        weights=None if explanation.attentions is None else compress_attention(explanation),
    )


class Chip(NamedTuple):
    """A word, its attribution, and the size of this in proportion to the largest one."""

    word: ExplainedWord
    value: float
    share: float


def _chips(words: Sequence[ExplainedWord], values: NDArray[np.float64]) -> list[Chip]:
    sums = [float(values[word.start : word.end].sum()) for word in words]
    most = max(map(abs, sums)) or 1.0
    return [Chip(word, value, abs(value) / most) for word, value in zip(words, sums, strict=True)]


def _parts(verdict: Verdict) -> list[tuple[str, Mark | None]]:
    """Return the text of a verdict near its marks in parts, each with its mark."""
    text, near = verdict.text, verdict.marks or [Mark(0, 0)]
    at, last = max(0, near[0].start - MAX_BESIDE), near[-1].end + MAX_BESIDE
    parts: list[tuple[str, Mark | None]] = [("… " if at else "", None)]
    for mark in verdict.marks:
        parts += [(text[at : mark.start], None), (text[mark.start : mark.end], mark)]
        at = mark.end
    return [*parts, (text[at:last] + (" …" if last < len(text) else ""), None)]


@dataclass(frozen=True)
class CompressedWeights:
    """Attention weights as text, for the page's script; `levels` is the number of steps from 0 to 1."""

    text: str
    levels: int

    def max_error(self, weight: float) -> float:
        """Return the largest error of a weight after rounding its square root to a step."""
        return math.sqrt(weight) / self.levels + 0.25 / self.levels**2


def compress_attention(explanation: Explanation) -> CompressedWeights:
    """Compress attention, with rollout as an additional head: (L, N + 1, T, T)."""
    attentions, rollout = explanation.attentions, explanation.rollout
    assert attentions is not None
    assert rollout is not None
    return compress_weights(np.concatenate([attentions, rollout[:, None].astype(np.float32)], 1))


def compress_weights(weights: NDArray[np.float32]) -> CompressedWeights:
    """Compress attention weights; overwrites `weights`.

    Each weight is stored as one byte: its square root times `levels`, so that small weights stay distinct. The bytes are
    compressed by zlib, which a browser unpacks with DecompressionStream("deflate"), and encoded in base64. If the text would be
    too long, fewer levels are used.
    """
    roots = np.sqrt(weights.clip(0, 1), out=weights)
    most = max(MAX_CHARACTERS, MAX_CHARACTERS_EACH * roots.size)
    for levels in LEVELS:
        # run-length encoding compresses these bytes as well as the default, ten times faster
        packer = zlib.compressobj(6, strategy=zlib.Z_RLE)
        compressed = packer.compress(np.rint(roots * levels).astype(np.uint8).tobytes()) + packer.flush()
        if len(compressed) * 4 / 3 <= most or levels == LEVELS[-1]:
            break
    return CompressedWeights(base64.b64encode(compressed).decode(), levels)
