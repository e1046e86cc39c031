"""Pictures of attention for a paper, as SVG on white: all heads, or one as lines and as a matrix; PNG by resvg."""

from __future__ import annotations

import base64
import html
import struct
import zlib
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from bertkit.base.errors import InputError, shown
from bertkit.explain.look import Look

INK, SOFT, BLUE, ORANGE, GREEN = "#1c2128", "#57606a", (31, 111, 235), "#c2510a", "#1a7f37"
ROW, COLUMN, GAP, MARGIN = 18, 130, 150, 24  # of tokens with lines between
THUMB, SPACE = 64, 6  # of the squares of all heads
MOST_NAMED = 64  # tokens that are written beside a matrix
FEWEST = 0.02  # a share whose line is drawn
LONGEST = 16  # characters of a token
ZOOM = 2.0  # pixels of PNG for a unit of SVG


def heads_picture(look: Look) -> str:
    """Draw every head of every layer as a square."""
    assert look.attentions is not None
    step = THUMB + SPACE
    parts = [
        label(MARGIN + 30 + (head + 0.5) * step, MARGIN, str(head + 1), "middle") for head in range(look.num_heads)
    ]
    for layer, heads in enumerate(look.attentions):
        top = MARGIN + 10 + layer * step
        parts.append(label(MARGIN + 22, top + THUMB / 2 + 4, str(layer + 1), "end"))
        parts += [_matrix(MARGIN + 30 + number * step, top, THUMB, head) for number, head in enumerate(heads)]
    width, height = MARGIN * 2 + 30 + look.num_heads * step, MARGIN + 16 + look.num_layers * step
    parts.append(label(width / 2, height + 12, "head (across), layer (down); darker: more attention", "middle", SOFT))
    return svg(width, height + MARGIN, parts, "Attention of all heads")


def one_head_picture(look: Look, layer: int, head: int) -> str:
    """Draw one head, both numbers from 1, as lines between tokens and as a matrix."""
    assert look.attentions is not None
    shares = look.attentions[layer - 1, head - 1]
    count, top = len(look.tokens), MARGIN + 20
    height = count * ROW
    left, right = MARGIN + COLUMN, MARGIN + COLUMN + GAP
    parts = [label(MARGIN, MARGIN, f"Layer {layer}, head {head}", weight=' font-weight="600"')]
    for query, key in np.argwhere(shares >= FEWEST).tolist():
        share = float(shares[query, key])
        y1, y2 = (top + (each + 0.5) * ROW for each in (query, key))
        parts.append(
            f'<line x1="{left + 4}" y1="{y1}" x2="{right - 4}" y2="{y2}" stroke="rgb{BLUE}" '
            f'stroke-opacity="{share:.3f}" stroke-width="{0.5 + 2 * share:.2f}"/>'
        )
    for place, token in enumerate(look.tokens):
        y, color = top + (place + 0.5) * ROW + 4, _color(look, place)
        parts += [label(left, y, short(token), "end", color), label(right, y, short(token), "start", color)]
    edge = right + COLUMN + (COLUMN if count <= MOST_NAMED else 0)
    size = max(min(height, 720), 160)
    across = top
    if count <= MOST_NAMED:
        across = top + 90
        cell = size / count
        for place, token in enumerate(look.tokens):
            color, middle = _color(look, place), (place + 0.5) * cell
            parts.append(label(edge - 4, across + middle + 4, short(token), "end", color, min(12.0, cell)))
            turned = f' transform="rotate(-60 {edge + middle:.1f} {across - 5})"'
            parts.append(label(edge + middle, across - 5, short(token), "start", color, min(12.0, cell), turned))
    parts.append(_matrix(edge, across, size, shares))
    width = edge + size + MARGIN + 50
    return svg(width, max(top + height, across + size) + MARGIN, parts, f"Attention of layer {layer}, head {head}")


def _color(look: Look, place: int) -> str:
    """What is explained stands out, and the second text from the first."""
    return ORANGE if place in look.marked else GREEN if look.segments[place] else INK


def short(token: str) -> str:
    """Write a token in a little space, whatever it holds."""
    token = shown(token)
    return token if len(token) <= LONGEST else f"{token[: LONGEST - 1]}…"


def label(
    x: float, y: float, text: str, anchor: str = "start", color: str = INK, size: float = 12.0, weight: str = ""
) -> str:
    """Write text at a place; `weight` takes more attributes."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}" font-size="{size:.3g}"{weight} '
        f'unicode-bidi="isolate">{html.escape(text)}</text>'
    )


def _matrix(x: float, y: float, size: float, shares: NDArray[np.float32]) -> str:
    """Draw shares, (T, T); darker by their root, so that small ones are seen."""
    return matrix(x, y, (size, size), np.sqrt(shares.clip(0, 1)), BLUE)


def matrix(
    x: float, y: float, size: tuple[float, float], strength: NDArray[np.float32], ink: tuple[int, int, int]
) -> str:
    """Draw strengths from 0 to 1, (rows, columns), as an image whose pixels are the cells; `size` is its width and height."""
    paper = np.array([255.0, 255.0, 255.0])
    pixels = np.rint(paper + strength[..., None] * (np.array(ink) - paper)).astype(np.uint8)
    content = base64.b64encode(_image(pixels)).decode()
    place = f'x="{x:.1f}" y="{y:.1f}" width="{size[0]}" height="{size[1]}"'
    return (
        f'<image {place} preserveAspectRatio="none" image-rendering="optimizeSpeed" '
        f'style="image-rendering:pixelated" href="data:image/png;base64,{content}"/>'
        f'<rect {place} fill="none" stroke="#d1d9e0"/>'
    )


def _image(pixels: NDArray[np.uint8]) -> bytes:
    """Put (rows, columns, 3) into a PNG: each row after a 0, which says that its bytes are as they are.

    Source: PNG specification, third edition, sections 5, 9 and 11.
    """

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    rows, columns, _ = pixels.shape
    lines = np.concatenate([np.zeros((rows, 1), np.uint8), pixels.reshape(rows, -1)], 1)
    head = struct.pack(">IIBBBBB", columns, rows, 8, 2, 0, 0, 0)  # 8 bits each of red, green and blue
    parts = (chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(lines.tobytes(), 9)), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def svg(width: float, height: float, parts: list[str], title: str) -> str:
    """Put parts on white."""
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    fonts = "DejaVu Sans, Noto Sans, Helvetica, Arial, sans-serif"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{fonts}"><title>{html.escape(title)}</title>\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def png_writer() -> Callable[[str], bytes]:
    """Give what draws SVG in pixels, as PNG.

    Raises:
        InputError: it is not installed.
    """
    try:
        from resvg_py import svg_to_bytes
    except ImportError:
        raise InputError(
            "output=: .png needs resvg-py, which is not installed: pip install 'bertkit[view]', or take .svg"
        ) from None
    return lambda picture: bytes(svg_to_bytes(svg_string=picture, zoom=ZOOM))
