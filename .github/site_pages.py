"""The site's pages, collected from where the repository keeps them: nothing is copied.

A page stands where its file does, less `.github/`. A file that a page links to and that is no page itself, such as a
script, becomes a page with its text.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

import bertkit

ROOT = Path(__file__).resolve().parents[1]
PAGES = ["README.md", *(f".github/{name}.md" for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY"))]
LINK = re.compile(r"\]\((?!https?:|#)([^)#]*)")
# Words stay whole in the cells of tables; on a phone tables and pictures scroll sideways.
STYLE = """
.md-typeset table:not([class]) :is(th, td) { padding: .6em .9em; min-width: 5rem; }
.md-typeset table:not([class]) code { word-break: normal; overflow-wrap: normal; }
@media (max-width: 600px) {
  .md-code__nav { display: none; }
  .md-typeset p:has(> img:only-child) { overflow-x: auto; }
  .md-typeset p > img:only-child { width: 32rem; max-width: none; }
}
"""
EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)  # until an empty line


class Examples(griffe.Extension):
    """Show examples in docstrings as code; take names from the stub, even where a folder has the same name."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Put in what the stub has."""
        if pkg.path != "bertkit":
            return
        path = ROOT / "bertkit" / "__init__.pyi"
        stub = griffe.visit("bertkit", filepath=path, code=path.read_text(encoding="utf-8"))
        found = {name: some[0] for name, some in stub.overloads.items() if some} | dict(stub.functions)
        for name, member in stub.members.items():
            if member.is_alias and member.target_path.startswith("bertkit."):
                found[name] = pkg[member.target_path.removeprefix("bertkit.")]
        for name, member in found.items():
            pkg.set_member(name, member)

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Fence them."""
        if obj.docstring:
            obj.docstring.value = EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", obj.docstring.value)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Put in the pages, the files that they link to, and the page of the Python interface."""
    for file in [file for file in files if file.src_dir == config.docs_dir]:
        files.remove(file)
    pages = [ROOT / name for name in PAGES] + sorted(ROOT.glob("recipes/*/README.md"))
    linked = {_linked(page, target) for page in pages for target in LINK.findall(page.read_text(encoding="utf-8"))}
    for path in [*pages, *sorted(linked - set(pages))]:
        is_shown = path in pages or path.suffix == ".svg"
        text = None if is_shown else f"# {path.name}\n\n```{path.suffix[1:]}\n{path.read_text(encoding='utf-8')}```\n"
        files.append(_file(config, _place(path), text, path))
    files.append(_file(config, "site.css", STYLE))
    names = [name for name in bertkit.__all__ if not name.startswith("_")]
    python = "# Python\n\n`import bertkit` takes milliseconds; each name is imported on first use.\n\n"
    files.append(_file(config, "python.md", python + "".join(f"::: bertkit.{name}\n\n" for name in names)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links lead to the places of the site."""
    if page.file.abs_src_path is None:
        return markdown
    here = Path(page.file.abs_src_path)

    def moved(match: re.Match[str]) -> str:
        place = _place(_linked(here, match[1]))
        return f"]({posixpath.relpath(place, posixpath.dirname(page.file.src_uri) or '.')}"

    return LINK.sub(moved, markdown)


def _linked(page: Path, target: str) -> Path:
    path = (page.parent / target).resolve()
    return path / "README.md" if path.is_dir() else path


def _place(path: Path) -> str:
    place = path.relative_to(ROOT).as_posix().removeprefix(".github/")
    return place if path.suffix in (".md", ".svg") else f"{place}.md"


def _file(config: MkDocsConfig, place: str, text: str | None, path: Path | None = None) -> File:
    given = {"content": text} if text is not None else {"abs_src_path": str(path)}
    # listings of files are reached by links alone
    is_listing = text is not None and path is not None
    level = InclusionLevel.NOT_IN_NAV if is_listing else InclusionLevel.INCLUDED
    return File.generated(config, place, inclusion=level, **given)
