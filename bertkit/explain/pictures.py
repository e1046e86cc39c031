"""What a model attends to, as attention.html, and as SVG for a paper: all heads, one head, or an alignment; PNG by resvg.

The page holds its own script and data: probabilities in at most 256 steps, compressed. In an alignment the source runs across
and the text down, and darker cells have more attention; in Bahdanau et al. 2015 (section 5.2.1, figure 3) they are white.
"""

import base64
import html
import math
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit.base.errors import InputError, shown
from bertkit.explain.explain import Explanation
from bertkit.view.page import render

INK, SOFT, BLUE, ORANGE, GREEN = "#1c2128", "#57606a", (31, 111, 235), "#c2510a", "#1a7f37"
BLACK = (28, 33, 40)  # INK
ROW, COLUMN, GAP, MARGIN = 18, 130, 150, 24  # of two columns of tokens with lines between them
THUMB, SPACE = 64, 6  # the square of a head, among all heads
CELL, LETTER, WIDEST_LINE = 18, 7, 330  # of an alignment: a token, a letter on average, the line below
MOST_NAMED = 64  # tokens written beside a matrix
FEWEST = 0.02  # the smallest share with a line
LONGEST = 16  # characters of a token
ZOOM = 2.0  # pixels of PNG for a unit of SVG


def heads_picture(explanation: Explanation) -> str:
    """Draw every head of every layer as a square."""
    assert explanation.attentions is not None
    step = THUMB + SPACE
    num_layers, num_heads = explanation.attentions.shape[:2]
    parts = [_label(MARGIN + 30 + (head + 0.5) * step, MARGIN, str(head + 1), "middle") for head in range(num_heads)]
    for layer, heads in enumerate(explanation.attentions):
        top = MARGIN + 10 + layer * step
        parts.append(_label(MARGIN + 22, top + THUMB / 2 + 4, str(layer + 1), "end"))
        parts += [_squared(MARGIN + 30 + number * step, top, THUMB, head) for number, head in enumerate(heads)]
    width, height = MARGIN * 2 + 30 + num_heads * step, MARGIN + 16 + num_layers * step
    parts.append(_label(width / 2, height + 12, "head (across), layer (down); darker: more attention", "middle", SOFT))
    return _svg(width, height + MARGIN, parts, "Attention of all heads")


def one_head_picture(explanation: Explanation, layer: int, head: int) -> str:
    """Draw one head, both numbers from 1, as lines between tokens and as a matrix."""
    assert explanation.attentions is not None
    shares = explanation.attentions[layer - 1, head - 1]
    count, top = len(explanation.tokens), MARGIN + 20
    height = count * ROW
    left, right = MARGIN + COLUMN, MARGIN + COLUMN + GAP
    parts = [_label(MARGIN, MARGIN, f"Layer {layer}, head {head}", more=' font-weight="600"')]
    for query, key in np.argwhere(shares >= FEWEST).tolist():
        share = float(shares[query, key])
        y1, y2 = (top + (place + 0.5) * ROW for place in (query, key))
        parts.append(
            f'<line x1="{left + 4}" y1="{y1}" x2="{right - 4}" y2="{y2}" stroke="rgb{BLUE}" '
            f'stroke-opacity="{share:.3f}" stroke-width="{0.5 + 2 * share:.2f}"/>'
        )
    for place, token in enumerate(explanation.tokens):
        y, color = top + (place + 0.5) * ROW + 4, _color(explanation, place)
        parts += [_label(left, y, _short(token), "end", color), _label(right, y, _short(token), "start", color)]
    edge = right + COLUMN + (COLUMN if count <= MOST_NAMED else 0)
    size = max(min(height, 720), 160)
    across = top
    if count <= MOST_NAMED:
        across = top + 90
        cell = size / count
        for place, token in enumerate(explanation.tokens):
            color, middle = _color(explanation, place), (place + 0.5) * cell
            parts.append(_label(edge - 4, across + middle + 4, _short(token), "end", color, min(12.0, cell)))
            turned = f' transform="rotate(-60 {edge + middle:.1f} {across - 5})"'
            parts.append(_label(edge + middle, across - 5, _short(token), "start", color, min(12.0, cell), turned))
    parts.append(_squared(edge, across, size, shares))
    width = edge + size + MARGIN + 50
    return _svg(width, max(top + height, across + size) + MARGIN, parts, f"Attention of layer {layer}, head {head}")


def alignment_picture(explanation: Explanation, layer: int | None = None, head: int | None = None) -> str:
    """Draw a head, both numbers from 1; without `head` the mean of a layer's heads, without both the mean of every layer."""
    assert explanation.alignment is not None
    weights = explanation.alignment.weights
    assert weights is not None
    source, target = (
        [_short(token) for token in tokens] for tokens in (explanation.tokens, explanation.alignment.tokens)
    )
    side, above = (LETTER * max(map(len, names)) + 10 for names in (target, source))
    left, size = MARGIN + side, (len(source) * CELL, len(target) * CELL)
    parts: list[str] = []
    top = float(MARGIN)
    for number in range(1, len(weights) + 1) if layer is None else (layer,):
        heads = weights[number - 1]
        shares = heads.mean(0) if head is None else heads[head - 1]
        if weights.shape[:2] != (1, 1):
            what = f"Layer {number}, {'mean of the heads' if head is None else f'head {head}'}"
            parts.append(_label(MARGIN, top, what, more=' font-weight="600"'))
        top += above + CELL
        parts += _names(source, target, left, top)
        parts.append(_matrix(left, top, size, shares.clip(0, 1), BLACK))
        top += size[1] + 2 * MARGIN
    parts.append(_label(MARGIN, top - MARGIN, "input (across), text (down); white 0, black 1", color=SOFT))
    width = max(left + size[0] + above / 2 + MARGIN, WIDEST_LINE)
    return _svg(width, top, parts, "Alignment of input and text")


def _names(source: Sequence[str], target: Sequence[str], left: float, top: float) -> Iterator[str]:
    """Write the tokens at the edges of an alignment."""
    for place, name in enumerate(target):
        yield _label(left - 5, top + (place + 0.5) * CELL + 4, name, "end")
    for place, name in enumerate(source):
        x = left + (place + 0.5) * CELL
        yield _label(x, top - 5, name, "start", INK, 12.0, f' transform="rotate(-60 {x:.1f} {top - 5:.1f})"')


def _color(explanation: Explanation, place: int) -> str:
    """Give the colour of a token: the target's own tokens and the second text have colours."""
    return ORANGE if place in explanation.target_tokens else GREEN if explanation.segments[place] else INK


def _short(token: str) -> str:
    """Write a token in a little space, with control characters escaped."""
    token = shown(token)
    return token if len(token) <= LONGEST else f"{token[: LONGEST - 1]}…"


def _label(
    x: float, y: float, text: str, anchor: str = "start", color: str = INK, size: float = 12.0, more: str = ""
) -> str:
    """Write text at a place; `more` are further attributes."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}" font-size="{size:.3g}"{more} '
        f'unicode-bidi="isolate">{html.escape(text)}</text>'
    )


def _squared(x: float, y: float, size: float, shares: NDArray[np.float32]) -> str:
    """Draw shares, (T, T), in a square; darker by their root, so that small ones are visible."""
    return _matrix(x, y, (size, size), np.sqrt(shares.clip(0, 1)), BLUE)


def _matrix(
    x: float, y: float, size: tuple[float, float], strength: NDArray[np.float32], ink: tuple[int, int, int]
) -> str:
    """Draw strengths from 0 to 1, (rows, columns), as an image with a pixel for each; `size` is (width, height)."""
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
    """Encode (rows, columns, 3) as PNG; the 0 before each row means "no filter".

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
    """Put parts on a white SVG."""
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    fonts = "DejaVu Sans, Noto Sans, Helvetica, Arial, sans-serif"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{fonts}"><title>{html.escape(title)}</title>\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def png_writer() -> Callable[[str], bytes]:
    """Give a function from SVG to PNG.

    Raises:
        InputError: resvg-py is not installed.
    """
    try:
        from resvg_py import svg_to_bytes
    except ImportError:
        raise InputError(
            "output=: .png needs resvg-py, which is not installed: pip install 'bertkit[view]', or take .svg"
        ) from None
    return lambda picture: bytes(svg_to_bytes(svg_string=picture, zoom=ZOOM))


NUM_LISTED = 10  # attributions in the table
NUM_SAID = 5  # elements of a list in a prediction
GIVEN = ("id", "words", "question", "context")  # fields of a prediction that come from its input
LEVELS = (255, 127, 63, 31, 15)  # steps from 0 to 1
# characters for probabilities, for few and for each of many: 128 tokens of 12 layers and heads in 3 MB, 512 in 20
FEW, EACH = 2_700_000, 0.48


def attention_page(explanation: Explanation, model_name: str) -> str:
    """Write the page of a model and one input."""
    count = len(explanation.tokens)
    values = np.zeros(count) if explanation.attribution is None else explanation.attribution.values
    heads = f", {explanation.num_heads} heads" if explanation.num_heads else ""
    aligned = None if explanation.alignment is None else explanation.alignment.weights
    prediction = None if explanation.prediction is None else explanation.prediction.items()
    return render(
        "attention.html",
        name="attention",
        headline=shown(f"{model_name}: {count} tokens, {explanation.num_layers} layers{heads}"),
        look=explanation,
        prediction=prediction and {name: _in_words(value) for name, value in prediction if name not in GIVEN},
        target=shown(_cut(explanation.target or "")),
        values=values.tolist(),
        most=float(np.abs(values).max(initial=0)) or 1.0,
        largest=np.argsort(-np.abs(values), kind="stable")[:NUM_LISTED].tolist(),
        alignment=None if aligned is None else packed_shares(aligned.copy()),
        weights=None if explanation.attentions is None else packed(explanation),
    )


def _in_words(value: Any) -> str:
    """Write a field of a prediction on one line, a long list cut."""
    if isinstance(value, dict):
        return _cut(", ".join(f"{name} {_in_words(item)}" for name, item in value.items()))
    if isinstance(value, (list, tuple)):
        return _cut("; ".join(map(_in_words, value[:NUM_SAID])) + ("; ..." if len(value) > NUM_SAID else ""))
    return _cut(shown(f"{value:.4f}" if isinstance(value, float) else value))


def _cut(text: str, most: int = 600) -> str:
    return text if len(text) <= most else f"{text[:most]} ..."


@dataclass(frozen=True)
class PackedShares:
    """Shares as text; `levels` is the number of steps from 0 to 1."""

    text: str
    levels: int

    def off(self, share: float) -> float:
        """The largest error of a share after rounding its root to a step."""
        return math.sqrt(share) / self.levels + 0.25 / self.levels**2


def packed(explanation: Explanation) -> PackedShares:
    """Pack attention, and rollout as one more head: (L, N + 1, T, T)."""
    attentions, rollout = explanation.attentions, explanation.rollout
    assert attentions is not None
    assert rollout is not None
    return packed_shares(np.concatenate([attentions, rollout[:, None].astype(np.float32)], 1))


def packed_shares(shares: NDArray[np.float32]) -> PackedShares:
    """Pack shares, in place.

    A byte is the root of a share times `levels`, so that the many small shares stay distinct. The bytes are compressed by
    zlib, which a browser's DecompressionStream("deflate") reads, and written in base64, with fewer levels if the text would
    be too long.
    """
    roots = np.sqrt(shares.clip(0, 1), out=shares)
    most = max(FEW, EACH * roots.size)
    for levels in LEVELS:
        packer = zlib.compressobj(
            6, strategy=zlib.Z_RLE
        )  # on such noise as small as a full search, in a tenth of the time
        compressed = packer.compress(np.rint(roots * levels).astype(np.uint8).tobytes()) + packer.flush()
        if len(compressed) * 4 / 3 <= most or levels == LEVELS[-1]:
            break
    return PackedShares(base64.b64encode(compressed).decode(), levels)
