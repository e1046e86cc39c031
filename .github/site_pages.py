"""The site, by zensical: python .github/site_pages.py [FOLDER]   (pip install '.[site]'; FOLDER is dist if it is left out)

The script collects the pages in FOLDER/pages, and zensical writes the site to FOLDER/site. A page stands where its file does,
less `.github/`. A file that a page links to and that is no page itself, such as a script, becomes a page with its text.
"""

import posixpath
import re
import shutil
import subprocess
import sys
from pathlib import Path

import bertkit

ROOT = Path(__file__).resolve().parents[1]
PAGES = ["README.md", *(f".github/{name}.md" for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY"))]
IMAGES = (".svg", ".png")
LINK = re.compile(r"\]\((?!https?:|#)([^)#]*)")


def main(folder: Path) -> None:
    """Collect the pages, and build the site; a broken link is an error."""
    shutil.rmtree(folder / "pages", ignore_errors=True)
    collect(folder / "pages")
    for name in ("mkdocs.yml", "site_docstrings.py"):
        shutil.copy(ROOT / ".github" / name, folder)
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict", "-f", str(folder / "mkdocs.yml")]
    sys.exit(subprocess.run(command).returncode)


def collect(folder: Path) -> None:
    """Write the pages, the files that they link to, and the page of the Python interface."""
    pages = [ROOT / name for name in PAGES] + sorted(ROOT.glob("recipes/*/README.md"))
    linked = {_linked(page, target) for page in pages for target in LINK.findall(page.read_text(encoding="utf-8"))}
    for path in [*pages, *sorted(linked - set(pages))]:
        content = path.read_bytes()
        if path in pages:
            content = _with_links_of_the_site(path, content.decode()).encode()
        elif path.suffix not in IMAGES:
            content = f"# {path.name}\n\n```{path.suffix[1:]}\n{content.decode()}```\n".encode()
        _write(folder / _place(path), content)
    shutil.copy(ROOT / ".github/site.css", folder)
    names = [name for name in bertkit.__all__ if not name.startswith("_")]
    python = "# Python\n\n`import bertkit` takes milliseconds; each name is imported on first use.\n\n"
    python += "".join(f"::: bertkit.{name}\n\n" for name in names)
    _write(folder / "python.md", python.encode())


def _with_links_of_the_site(page: Path, text: str) -> str:
    here = posixpath.dirname(_place(page)) or "."
    return LINK.sub(lambda found: f"]({posixpath.relpath(_place(_linked(page, found[1])), here)}", text)


def _linked(page: Path, target: str) -> Path:
    path = (page.parent / target).resolve()
    path = path / "README.md" if path.is_dir() else path
    if not path.is_file():
        sys.exit(f"error: {page.relative_to(ROOT)}: a link to {target}, which is not there")
    return path


def _place(path: Path) -> str:
    place = path.relative_to(ROOT).as_posix().removeprefix(".github/")
    return place if path.suffix in (".md", *IMAGES) else f"{place}.md"


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist")
