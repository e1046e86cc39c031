"""A release: archives with the same bytes wherever they are built, an installation of the wheel, and the site."""

import functools
import gzip
import hashlib
import http.server
import importlib.metadata
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import chromium
from conftest import make_text, write_text
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import bertkit

ROOT = Path(__file__).resolve().parents[1]
WHEEL, SOURCE = (f"bertkit-{bertkit.__version__}{ending}" for ending in ("-py3-none-any.whl", ".tar.gz"))


def run(*command: str | Path, **options: object) -> str:
    done = subprocess.run(command, capture_output=True, text=True, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


def build(source: Path, folder: Path) -> dict[str, str]:
    """Build both archives; give their hashes by name."""
    environment = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
    run(sys.executable, "-m", "hatchling", "build", "-d", folder, cwd=source, env=environment)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    folder = tmp_path_factory.mktemp("built")
    return folder, build(ROOT, folder)


def test_the_source_archive_builds_the_same_bytes_elsewhere(built: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    """At another time, with other rights, in another order of files."""
    folder, hashes = built
    assert set(hashes) == {WHEEL, SOURCE}
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress((folder / SOURCE).read_bytes()))) as archive:
        for member in sorted(archive.getmembers(), key=lambda member: member.name, reverse=True):
            member.mtime, member.mode = 1_700_000_000, member.mode & 0o700
            archive.extract(member, tmp_path, filter="fully_trusted")
    assert build(tmp_path / SOURCE.removesuffix(".tar.gz"), tmp_path / "again") == hashes


def test_the_wheel_is_installed_and_used(built: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    """In a new environment, beside the packages of this one, which are neither copied nor downloaded."""
    place = tmp_path / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", place)
    pip = [sys.executable, "-m", "pip", "--python", place / "bin" / "python", "--disable-pip-version-check"]
    run(*pip, "install", "-q", "--no-deps", "--no-index", built[0] / WHEEL)
    (site,) = (place / "lib").glob("python3*/site-packages")
    outer = [path for path in sys.path if "-packages" in path]
    (site / "outer.pth").write_text("\n".join(outer))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = functools.partial(run, place / "bin" / "bertkit", cwd=tmp_path, env=environment)
    assert command("--version").split() == ["bertkit", bertkit.__version__]
    assert "usage: bertkit" in command("--help")
    text = write_text(tmp_path / "text.txt", make_text(5))
    command("prepare", f"corpus.path={text}", "tokenizer.vocab_size=120", "output_dir=data")
    assert json.loads((tmp_path / "data/manifest.json").read_text())["bertkit"] == bertkit.__version__
    script = (
        "import json, bertkit, importlib.metadata, bertkit.base.typed_settings as typed; from bertkit.display.page import render\n"
        "from bertkit.settings.reading.compose import compose\n"
        "composed = compose('pretrain', ['model=large', 'data_dir=x', 'output_dir=y'])\n"
        "page = render('compare.html', name='', headline='', lines=(), tables=(), charts=())\n"
        "print(json.dumps([bertkit.__file__, str(typed.conf_dir()), importlib.metadata.version('bertkit'),\n"
        "  composed['model']['hidden_size'], len(list(typed.conf_dir().rglob('*.yaml'))), len(page) > 1000]))"
    )
    package, conf, *rest = json.loads(run(place / "bin" / "python", "-c", script, cwd=tmp_path, env=environment))
    assert Path(package).is_relative_to(site)
    assert Path(conf).is_relative_to(site)
    assert rest == [bertkit.__version__, 1024, len(list((ROOT / "conf").rglob("*.yaml"))), True]


def test_one_version_is_named_everywhere() -> None:
    changelog = (ROOT / ".github/CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (\S+) - (\d{4}-\d\d-\d\d)$", changelog, re.MULTILINE)
    assert headings == sorted(headings, reverse=True)
    assert headings[0][0] == bertkit.__version__


def test_every_package_is_pinned() -> None:
    """All that the extras bring along, however indirectly, so that an install next year is that of today."""
    pinned = set(re.findall(r"^([\w.-]+)==[\w.]+$", (ROOT / "docker/constraints.txt").read_text(), re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"].values()
    needed = [Requirement(line) for lines in (project["project"]["dependencies"], *extras) for line in lines]
    needed += [Requirement(line) for line in project["build-system"]["requires"]]
    results: set[tuple[str, str]] = set()
    while needed:
        requirement = needed.pop()
        name = canonicalize_name(requirement.name)
        for extra in {"", *requirement.extras} - {extra for known, extra in results if known == name}:
            results.add((name, extra))
            if name != "bertkit" and _is_installed(name):
                lines = [Requirement(line) for line in importlib.metadata.requires(name) or []]
                needed += [line for line in lines if line.marker is None or line.marker.evaluate({"extra": extra})]
    assert len(results) > 60
    assert {name for name, _ in results} - pinned == {"bertkit"}


def test_the_pinned_packages_take_the_oldest_python_that_is_promised() -> None:
    """As Debian 12's 3.11.2, for which a package with >=3.11.5 made the whole install fail."""
    oldest = SpecifierSet(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"])
    (first,) = (specifier.version for specifier in oldest if specifier.operator == ">=")
    wanted = {
        each.metadata["Name"]: each.metadata.get("Requires-Python") for each in importlib.metadata.distributions()
    }
    assert {
        name: python for name, python in wanted.items() if python and f"{first}.0" not in SpecifierSet(python)
    } == {}


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build_site(ROOT, folder).check_returncode()
    return folder / "site"


def build_site(root: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    for package in ("zensical", "mkdocstrings_handlers"):
        pytest.importorskip(package, reason="needs the packages of bertkit[site]")
    command = [sys.executable, root / ".github/site_pages.py", folder]
    return subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=site)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_the_site_has_every_page(site: Path) -> None:
    """And the navigation has every guide."""
    pages = {path.parent.relative_to(site).as_posix(): path.read_text() for path in site.rglob("index.html")}
    recipes = {path.parent.relative_to(ROOT).as_posix() for path in ROOT.glob("recipes/*/README.md")}
    assert len(recipes) > 15
    assert set(pages) >= {*recipes, ".", "CHANGELOG", "CONTRIBUTING", "SECURITY", "python", "conf/attention/bert.yaml"}
    names = set(re.findall(r'<h2 id="bertkit\.(\w+)"', pages["python"]))
    assert names == {name for name in bertkit.__all__ if not name.startswith("_")}
    assert '<span class="gp">&gt;&gt;&gt; </span>' in pages["python"]
    assert "Args:" not in pages["python"]  # a list of parameters
    for page in (*recipes, "python", "CHANGELOG", "CONTRIBUTING", "SECURITY"):
        assert f'<a href="./{page}/" class="md-nav__link">' in pages["."], page
    assert "hidden_size" not in pages["."]
    for text in pages.values():
        assert re.findall(r'(?:src|href)="https?://(?!localhost)[^"]*\.(?:js|css|woff2?)"', text) == []


@pytest.mark.slow
def test_a_broken_link_is_an_error(tmp_path: Path) -> None:
    def built_with(link: str) -> str:
        root = tmp_path / link.replace("/", "-")
        shutil.copytree(ROOT, root, ignore=shutil.ignore_patterns("*.py[ci]", ".git", ".venv", "dist", "runs"))
        with (root / ".github/SECURITY.md").open("a", encoding="utf-8") as file:
            file.write(f"\n[a page]({link})\n")
        done = build_site(root, tmp_path / "site")
        assert done.returncode == 1, done.stdout
        return done.stdout

    assert built_with("nowhere.md") == "error: .github/SECURITY.md: a link to nowhere.md, which is not there\n"
    assert "anchor does not exist" in built_with("CONTRIBUTING.md#nowhere")


def test_the_pages_fit_a_phone_and_a_desk(site: Path, address: str, tmp_path: Path) -> None:
    with chromium(tmp_path) as browser:
        for page in ("", "CONTRIBUTING", "python", "recipes/how_fast", "recipes/what_is_shown"):
            browser.call("Page.navigate", url=f"{address}/{page}")
            browser.wait(f"document.readyState === 'complete' && location.pathname.startsWith('/{page}')")
            for width in (390, 1280):
                size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
                browser.call("Emulation.setDeviceMetricsOverride", **size)
                browser.wait(f"innerWidth === {width}")
                assert browser.ask("document.documentElement.scrollWidth <= innerWidth"), (page, width)
            assert browser.ask("[...document.images].every(image => image.complete && image.naturalWidth > 0)"), page
        assert [url for url in browser.requests if not url.startswith((address, "data:"))] == []
        assert browser.faults == []
