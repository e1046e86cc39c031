"""Draw the pictures of the README, CONTRIBUTING and guides: `python tests/pictures.py [RUN_DIR] [PAGE ...]`.

architecture.svg  what the commands make of each other, and the way of a training step, by the code's own names
house.svg         the rooms of the package, a floor each; imports point down
speedrun*.svg     held-out loss over minutes, for the longest run of each row of recipes/speedrun; its scores on BLiMP; what each change is worth
report.svg        what the report of RUN_DIR shows; without RUN_DIR the picture stays as it is
positions_*.svg   what the pages positions_*.html of recipes/attention_zoo show; without pages, the pictures stay as they are
view.png          the upper part of a page of `view`, attention.html; search.png that of a server's page, http://HOST:PORT/#QUESTION
alignment.svg     stays as recipes/translate made it; attention_zoo.svg as recipes/attention_zoo did

Each SVG brings its own background, and another one where dark colours are preferred.
"""

import ast
import html
import re
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from browser import chromium
from house import ROOT, modules
from test_layers import RULE

from bertkit.base import plugins
from bertkit.commands import COMMANDS
from bertkit.display.charts import line_chart
from bertkit.tasks.task_config import KINDS

RECORD = ROOT / "recipes" / "speedrun"
sys.path.append(str(RECORD))
import leaderboard  # noqa: E402
import speedrun  # noqa: E402

PICTURES = ROOT / ".github" / "pictures"
DRAWN = {
    "hugging_face_wide": "transformers' Trainer, BERT-mini", "hugging_face_no_dropout": "the same, no dropout, 30 % masked",
    "hugging_face_sentences": "the same, on whole sentences", "30 % masked": "the same, by bertkit",
    "mini from scratch": "model=mini, with its own settings",
    "hugging_face_modern": "transformers' Trainer, ModernBERT", "modern_mini": "model=modern_mini",
    "disentangled": "modern_mini, disentangled positions", "narrow": "modern_mini, 192 wide", "narrower": "modern_mini, 128 wide",
}  # fmt: skip
STYLE = """
text { font: 14px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2328 }
.title { font-weight: 600; font-size: 15px } .name { font-weight: 600 } .small { font-size: 12px; fill: #59636e }
.paper { fill: #ffffff; stroke: #d1d9e0 } .box { fill: #f6f8fa; stroke: #818b98 } .command { fill: #ddf4ff; stroke: #0969da }
.frame { fill: none; stroke: #818b98; stroke-dasharray: 4 4 } .arrow { fill: none; stroke: #59636e; stroke-width: 1.5 }
.tip { fill: #59636e }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc } .small { fill: #9198a1 } .paper { fill: #0d1117; stroke: #3d444d }
  .box { fill: #151b23; stroke: #656c76 } .command { fill: #121d2f; stroke: #4493f8 } .frame { stroke: #656c76 }
  .arrow { stroke: #9198a1 } .tip { fill: #9198a1 }
}
"""
TIP = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    '<path class="tip" d="M0 0 8 4 0 8z"/></marker></defs>'
)
# the commands between what they take and make, with what is small below the name; then the commands under some of it
CHAIN = (
    ("text", ""), ("prepare",), ("dataset", "tokenizer, shards"), ("pretrain",), ("run", "model/, report.html"),
    ("finetune",), ("task model", "model/, report.html"),
)  # fmt: skip
BELOW = (
    ("dataset", ("evaluate",), "losses of any model"),
    ("run", ("export", "verify"), "Hugging Face directory, compared"),
    ("task model", ("predict", "embed", "view"), "predictions, vectors, attention"),
)
# the way of a training step: the names in each box, and the file that defines them
STEP = (
    ("document_pairs", "data/batches/segments.py"),
    ("mask_tokens", "data/batches/masking.py"),
    ("collate", "data/batches/collate.py"),
    ("Embeddings", "model/bert.py"),
    ("attend", "model/attention.py"),
    ("FeedForward", "model/bert.py"),
    ("Head", "model/head/head.py"),
    ("cross_entropy", "train/losses.py"),
    ("optimizer_step", "train/loop.py"),
    ("save", "train/checkpoint.py"),
)
NUM_CHARTS = 4
WIDTH, HEIGHT = 1120, 780  # of a PNG
REPORT_STYLE = """
svg { --c0: #1f6feb; --c1: #c2510a; --c2: #1a7f37; --c3: #8250df; --ink: #1c2128; --soft: #57606a; --rule: #dde3ea }
.headline { font-size: 20px; font-weight: 600 } .chart text { font-size: 13px; fill: #59636e } .legend { fill: none }
@media (prefers-color-scheme: dark) {
  svg { --c0: #4493f8; --c1: #f0883e; --c2: #3fb950; --c3: #bc8cff; --ink: #e6edf3; --soft: #9198a1; --rule: #262c36 }
  .chart text { fill: #9198a1 } image { filter: invert(1) hue-rotate(180deg); mix-blend-mode: screen }
}
"""
FIRST_ROW = 5  # boxes; the second row runs back. The last of the first and the first of the second are a layer


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "middle") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" class="{kind}">{html.escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, lines: Sequence[str], kind: str = "box") -> str:
    """A box with a name, and what is small below it."""
    first = y + height / 2 + 5 - 9 * (len(lines) - 1)
    words = [text(x + width / 2, first + 18 * n, line, "small" if n else "name") for n, line in enumerate(lines)]
    return f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6"/>{"".join(words)}'


def arrow(*points: tuple[float, float]) -> str:
    path = " ".join(f"{x:g},{y:g}" for x, y in points)
    return f'<polyline class="arrow" points="{path}" marker-end="url(#tip)"/>'


def picture(width: int, height: int, label: str, parts: Iterable[str], more_style: str = "") -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{html.escape(label)}"><style>{STYLE}{more_style}</style>{TIP}\n'
        f'<rect class="paper" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="10"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def defined(file: str) -> set[str]:
    """The functions and classes of a file of the package."""
    tree = ast.parse((ROOT / "bertkit" / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def flow() -> list[str]:
    """What the commands make of each other, from text to predictions."""
    parts, ends, x = [text(24, 34, "The commands, and what they make", "title", "start")], {}, 24.0
    for lines in CHAIN:
        is_command = lines[0] in COMMANDS
        width = 76.0 if is_command else 124.0 if lines[1] else 56.0
        parts.append(box(x, 52, width, 50, [line for line in lines if line], "command" if is_command else "box"))
        if x > 24:
            parts.append(arrow((x - 20, 77), (x - 1, 77)))
        ends[lines[0]] = x + width
        x += width + 20
    for above, names, what in BELOW:
        for number, name in enumerate(reversed(names)):
            if name not in COMMANDS:
                raise ValueError(f"there is no command {name}")
            left = ends[above] - 72 - number * 80
            parts += [box(left, 126, 72, 32, [name], "command"), arrow((left + 52, 102), (left + 52, 125))]
        parts.append(text(ends[above], 178, what, "small", "end"))
    return parts


def step() -> list[str]:
    """The way of a batch through a training step, in two rows.

    Raises:
        ValueError: the code does not define a name that is drawn.
    """
    width, height, pitch, top = 136.0, 50.0, 156.0, 252.0
    parts = [text(24, top - 26, "A training step, from documents to a checkpoint", "title", "start")]
    for number, (name, file) in enumerate(STEP):
        if name not in defined(file):
            raise ValueError(f"bertkit/{file} does not define {name}")
        is_back = number >= FIRST_ROW
        x = 24 + pitch * (2 * FIRST_ROW - 1 - number if is_back else number)
        y = top + 92 * is_back
        parts.append(box(x, y, width, height, [name, file.removeprefix("data/")]))
        if number == FIRST_ROW - 1:
            parts.append(arrow((x + width / 2, y + height), (x + width / 2, y + 91)))
            parts.append(
                f'<rect class="frame" x="{x - 8}" y="{y - 10}" width="{width + 16}" height="{height + 112}" rx="8"/>'
            )
            parts.append(text(x + width + 8, y + height + 122, "EncoderLayer, once for each layer", "small", "end"))
        elif number < len(STEP) - 1:
            y += height / 2
            parts.append(
                arrow((x, y), (x + width - pitch + 1, y)) if is_back else arrow((x + width, y), (x + pitch - 1, y))
            )
    parts.append(text(24, top + 172, f"heads: {', '.join(plugins.built_in('model_head'))}", "small", "start"))
    parts.append(text(24, top + 192, f"kinds of tasks: {', '.join(KINDS)}", "small", "start"))
    return parts


def architecture() -> str:
    return picture(824, 466, "The commands of bertkit, and a training step", [*flow(), *step()])


def summary(name: str) -> str:
    """The first sentence of what a room says that it is for."""
    words = ast.get_docstring(ast.parse(modules(ROOT)[f"bertkit.{name}"].read_text(encoding="utf-8"))) or ""
    return re.split(r"\.\s|\.$|:$", words.split("\n\n")[0])[0].replace("\n", " ").replace("`", "")


def levels() -> list[list[str]]:
    """The rooms by how many lie below them, the highest floor first."""
    depth: dict[str, int] = {}

    def of(name: str) -> int:
        if name not in depth:
            depth[name] = 1 + max((of(below) for below in RULE[name] if below in RULE), default=0)
        return depth[name]

    highest = max(map(of, RULE))
    return [[name for name in RULE if depth[name] == floor] for floor in range(highest, 0, -1)]


def house() -> str:
    """A floor for each level of rooms."""
    width, gap, y = 810, 12.0, 52.0
    parts = [text(24, 34, "Imports point down", "title", "start")]
    for floor in levels():
        each = (width - 48 + gap) / len(floor) - gap
        words = [textwrap.wrap(summary(name), int(each / 6.4)) for name in floor]
        height = 32.0 + 18 * max(map(len, words))
        for number, (name, lines) in enumerate(zip(floor, words, strict=True)):
            room = f"{name}/" if (ROOT / "bertkit" / name).is_dir() else f"{name}.py"
            parts.append(box(24 + number * (each + gap), y, each, height, [room, *lines]))
        y += height + gap
    return picture(width, int(y + 12), "The rooms of bertkit", parts)


def report(page: str) -> str:
    """The first charts of a report, with its name and its first sentence."""
    (name,) = re.findall("<h1>(.*?)</h1>", page)
    sentence = html.unescape(re.findall("<p>(.*?)</p>", page)[0])
    figures = re.findall(
        r'<figcaption>(.*?)</figcaption>\s*(<svg.*?</svg>)\s*<div class="legend">(.*?)</div>', page, re.DOTALL
    )
    parts = [text(24, 40, html.unescape(name), "headline", "start")]
    lines = textwrap.wrap(sentence, 140)
    parts += [text(24, 66 + 20 * number, line, "", "start") for number, line in enumerate(lines)]
    top = 66 + 20 * len(lines)
    for number, (title, drawing, legend) in enumerate(figures[:NUM_CHARTS]):
        x, y = 16 + 492 * (number % 2), top + 296 * (number // 2)
        parts.append(text(x + 8, y + 16, html.unescape(title), "title", "start"))
        sized = drawing.replace("<svg ", '<svg width="420" height="241" ', 1)  # that of a page is as wide as its column
        parts.append(f'<g transform="translate({x} {y + 24})" class="chart">{sized}</g>')
        entries = re.findall('<span style="color:(.*?)">(.*?)</span>', legend)
        spans = "".join(f'<tspan style="fill:{color}" dx="12">{words}</tspan>' for color, words in entries)
        parts.append(f'<text x="{x + 40}" y="{y + 280}" class="legend">{spans}</text>')
    rows = -(-len(figures[:NUM_CHARTS]) // 2)
    return picture(1000, top + 296 * rows + 8, f"{name}: {sentence}", parts, REPORT_STYLE)


def record() -> str:
    """The longest run of each row of the record, the best one of equally long ones."""
    runs = sorted(speedrun.lines_of(RECORD / "runs.jsonl"), key=lambda run: (run["steps"], -run["losses"][-1][1]))
    curves = {run["row"]: speedrun.curve_of(run, RECORD) for run in runs}  # a later run replaces an earlier one
    lines = [(name, curves[row]) for row, name in DRAWN.items()]
    return _chart("What an hour of two CPU cores buys", lines, "loss of held-out masked tokens")


def _chart(title: str, lines: Sequence[tuple[str, Sequence[tuple[float, float]]]], measured: str) -> str:
    """Curves over the minutes of two cores."""
    chart = line_chart("", lines, x_name="minutes of two cores", y_name=measured)
    parts = [text(24, 34, title, "title", "start")]
    parts.append(f'<g transform="translate(8 44) scale(1.5)" class="chart">{"".join(chart.parts)}</g>')
    for number, (name, shade) in enumerate(chart.legend):
        x, y = 32 + 290 * (number % 2), 412 + 22 * (number // 2)
        parts.append(f'<text x="{x}" y="{y}" style="fill:{shade}">{name}</text>')
    style = REPORT_STYLE + ".chart text { font-size: 9px }"
    return picture(620, 412 + 22 * -(-len(chart.legend) // 2), f"{title}: {measured} over minutes", parts, style)


def worth() -> str:
    """What each change of modern_mini is worth in about the minutes of 600 steps: a dot for each seed, those far outside at the border."""
    runs = speedrun.runs_beside(600, RECORD)
    found = [each for each in leaderboard.standings(runs) if each.gains and each.row != leaderboard.REFERENCE]
    left, middle, half, reach = 24, 400, 140, 0.3  # pixels, and nats at the border
    parts = [
        text(left, 34, "Held-out loss after five minutes, beside modern_mini with the same seed", "title", "start")
    ]
    parts.append(text(left, 56, "nats; right: better. A dot is a seed; three or more make a record.", "small", "start"))
    for number, each in enumerate(found):
        y = 88 + 24 * number
        gain = sum(each.gains) / len(each.gains)
        parts += [
            text(left, y + 5, f"{each.row}, {_short(each.rate)}", "", "start"),
            text(640, y + 5, f"{gain:+.3f}", "", "end"),
        ]
        places = (middle + half * max(-1.0, min(1.0, seed / reach)) for seed in each.gains)
        parts += [f'<circle class="command" cx="{x:.1f}" cy="{y}" r="5"/>' for x in places]
    bottom = 80 + 24 * len(found)
    parts.append(f'<line class="arrow" x1="{middle}" y1="72" x2="{middle}" y2="{bottom}"/>')
    return picture(664, bottom + 16, "What each change is worth, in nats of held-out loss", parts)


def _short(rate: float) -> str:
    return f"{rate:.0e}".replace("e-0", "e-")  # 2e-4


def grammar() -> str:
    """The scores on BLiMP over the minutes of a run, of the runs that were scored several times."""
    runs = speedrun.lines_of(RECORD / "runs.jsonl")
    lines = []
    for line in speedrun.lines_of(RECORD / "grammar.jsonl"):
        run = next(each for each in runs if all(each[key] == line[key] for key in speedrun.OWN))
        minutes = {step: at for (step, _), (at, _) in zip(run["losses"], speedrun.curve_of(run, RECORD), strict=True)}
        if len(line["scores"]) > 1:
            curve = [(minutes[step], 100 * score) for step, score in line["scores"]]
            lines.append((f"{DRAWN[line['row']]}, {_short(line['rate'])}", curve))
    return _chart("BLiMP after an hour of two CPU cores; guessing has 50", lines, "% of the pairs")


def photograph(address: str, path: Path) -> None:
    """Take a picture of a page in Chromium, PNG; of a server's page, after the question behind its `#`."""
    question = unquote(urlsplit(address).fragment)
    with tempfile.TemporaryDirectory() as folder, chromium(Path(folder)) as browser:
        browser.open(address, WIDTH, HEIGHT)
        if question:
            browser.click("#field-0")
            browser.type(question)
            browser.press("Enter")
            browser.wait("document.querySelector('.hits') !== null")
        browser.picture(path, WIDTH, HEIGHT)


def main(pages: Sequence[str]) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    drawn = {
        "architecture": architecture(),
        "house": house(),
        "speedrun": record(),
        "speedrun_grammar": grammar(),
        "speedrun_worth": worth(),
    }
    for name in pages:
        path = Path(name)
        if name.startswith("http"):
            photograph(name, PICTURES / "search.png")
        elif path.name == "attention.html":
            photograph(path.resolve().as_uri(), PICTURES / "view.png")
        elif path.is_dir():
            drawn["report"] = report((path / "report.html").read_text(encoding="utf-8"))
        else:
            page = re.sub(r"<p>.*: (\w+ positions)</p>", r"<p>\1</p>", path.read_text(encoding="utf-8"))
            drawn[path.stem] = report(page)
    for name, content in drawn.items():
        (PICTURES / f"{name}.svg").write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
