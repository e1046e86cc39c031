"""The images: no Docker is needed to see that they are pinned, run without rights, and copy and run what is there.

The steps of the CPU image are also run, as root in a mount namespace: by default in a throwaway overlay of this machine, with this
Python's packages and without a network; in full in a fresh Debian: pytest -m slow tests/test_docker.py
"""

import ensurepip
import json
import os
import re
import shlex
import shutil
import string
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import make_text

import bertkit
from bertkit.base.typed_settings import build
from bertkit.settings.reading.compose import compose
from bertkit.settings.reading.names import schema_of

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ["Dockerfile", "Dockerfile.cuda"]


def read(name: str) -> str:
    return (ROOT / "docker" / name).read_text(encoding="utf-8")


def instructions(text: str) -> list[tuple[str, str]]:
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in lines]


def faults(steps: list[tuple[str, str]]) -> list[str]:
    results = []
    names = [name for name, _ in steps]
    for name, rest in steps:
        if name == "FROM" and not re.search(r":\d+\.\d+\.\d+-[\w.-]+$", rest):
            results.append(f"FROM {rest}: not a full version")
        if name == "COPY":
            sources = [part for part in rest.split() if not part.startswith("--")][:-1]
            results += [f"COPY {source}: not there" for source in sources if not (ROOT / source).exists()]
        for path in re.findall(r"/bertkit/(\S+\.(?:sh|txt))", rest):
            if not (ROOT / path).is_file():
                results.append(f"{name}: {path} is not there")
        if name == "RUN" and "pip install" in rest and "constraints.txt" not in rest:
            results.append(f"RUN {rest}: not pinned")
    if "USER" not in names or dict(steps)["USER"] in ("root", "0"):
        results.append("no user")
    elif any("install.sh" in rest for name, rest in steps[: names.index("USER")]):
        results.append("installed as root")
    if not any(name == "RUN" and "docker/install.sh" in rest for name, rest in steps):
        results.append("not the tested installation")
    return results


@pytest.mark.parametrize("name", IMAGES)
def test_dockerfiles_have_no_faults(name: str) -> None:
    assert sorted(path.name for path in (ROOT / "docker").glob("Dockerfile*")) == IMAGES
    assert faults(instructions(read(name))) == []


@pytest.mark.parametrize(("old", "new", "fault"), [
    ("python:3.11.14-slim-bookworm", "python:3.11-slim", "FROM python:3.11-slim: not a full version"),
    ("USER bertkit", "USER root", "no user"),
    ("USER bertkit\n", "", "no user"),
    ("bertkit:bertkit . /bertkit", "bertkit:bertkit src /bertkit", "COPY src: not there"),
    ("docker/install.sh", "docker/instal.sh", "RUN: docker/instal.sh is not there"),
])  # fmt: skip
def test_a_faulty_image_is_found(old: str, new: str, fault: str) -> None:
    assert old in read("Dockerfile")
    assert fault in faults(instructions(read("Dockerfile").replace(old, new)))


def test_the_cuda_image_takes_the_torch_of_the_tests() -> None:
    """The line that is looked up in the constraints is there, once."""
    text = read("constraints.txt")
    assert len(re.findall(r"^torch==[\d.]+$", text, re.MULTILINE)) == 1
    assert "grep '^torch==' /bertkit/docker/constraints.txt" in read("Dockerfile.cuda")


def test_the_two_hosts_of_the_compose_file_belong_together() -> None:
    composed: dict[str, Any] = yaml.safe_load(read("compose.yaml"))
    commands = {name: service["command"].split() for name, service in composed["services"].items()}
    assert set(commands) == {"prepare", "host0", "host1"}
    build(schema_of("prepare"), compose(commands["prepare"][0], commands["prepare"][1:]))
    built = [build(schema_of("pretrain"), compose("pretrain", commands[name][1:])) for name in ("host0", "host1")]
    assert [each.launch.host_rank for each in built] == [0, 1]
    assert commands["host0"][:-1] == commands["host1"][:-1]
    assert f"output_dir={built[0].data_dir}" in commands["prepare"]


def test_the_scripts_are_bash() -> None:
    scripts = [*ROOT.glob("recipes/*/*.sh"), ROOT / "docker" / "install.sh"]
    assert len(scripts) == 21
    for script in scripts:
        done = subprocess.run(["bash", "-n", script], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


BASE_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
# a volume belongs to who runs the container
USE = """
mkdir "$root/volume"; chown 4321:4321 "$root/volume"; mount --bind "$root/volume" "$root/data"
cat > "$root/data/text.txt"; chown 4321:4321 "$root/data/text.txt"
"""
ARGUMENTS = (["--version"], ["prepare", "corpus.path=text.txt", "tokenizer.vocab_size=120", "output_dir=out"])
OVERLAY = """
mount -t tmpfs tmpfs "$root"; mkdir "$root"/upper "$root"/work "$root"/all
mount -t overlay overlay -o "lowerdir=/,upperdir=$root/upper,workdir=$root/work" "$root/all" || exit 77
root=$root/all
sed -i '/:1000:/d' "$root"/etc/passwd "$root"/etc/group
"""


def as_script(steps: list[tuple[str, str]], environment: Mapping[str, str]) -> str:
    """The steps of a Dockerfile as a shell script for the root file system $root; then the container is run as in the README."""
    user, place, known = "root", "/", dict(environment)
    lines = ['mount -t proc proc "$root/proc"; mount --rbind /dev "$root/dev"']

    def inside(who: str, command: str) -> str:
        variables = {"HOME": "/root" if who == "root" else "/home/bertkit", **known}
        inputs = shlex.join(f"{name}={value}" for name, value in variables.items())
        return f'chroot --userspec={who} "$root" env -i {inputs} sh -c {shlex.quote(f"cd {place} && {command}")}'

    for name, rest in steps:
        if name == "RUN":
            lines.append(inside(user, rest))
        elif name == "COPY":
            owner, source, target = re.fullmatch(r"--chown=(\S+) (\S+) (\S+)", rest).groups()  # type: ignore[union-attr]
            left_out = (ROOT / ".dockerignore").read_text().split()
            excluded = " ".join(f"--exclude={line.removeprefix('**/')}" for line in left_out)
            lines.append(f'mkdir "$root{target}"; tar -C {ROOT / source} {excluded} -c . | tar -C "$root{target}" -x')
            lines.append(f'chroot "$root" chown -R {owner} {target}')
        elif name == "USER":
            user = rest
        elif name == "ENV":
            known |= (part.split("=", 1) for part in shlex.split(string.Template(rest).substitute(known)))
        elif name == "WORKDIR":
            place = rest
        elif name == "ENTRYPOINT":
            lines += [USE, *(inside("4321:4321", shlex.join([*json.loads(rest), *more])) for more in ARGUMENTS)]
        else:
            assert name == "FROM"
    return "\n".join(lines)


def run_image(root: Path, before: str, environment: Mapping[str, str], *options: str) -> None:
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0:
        pytest.skip("needs the right to mount file systems")
    script = "\n".join(
        ["set -euo pipefail", f"root={root}", before, as_script(instructions(read("Dockerfile")), environment)]
    )
    command = ["unshare", "--mount", "--pid", "--fork", *options, "bash", "-c", script]
    text = "\n\n".join("\n".join(document) for document in make_text(5))
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    if done.returncode == 77:
        pytest.skip("needs overlayfs")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"bertkit {bertkit.__version__}\n" in done.stdout
    assert "tokens to train on" in done.stdout


def test_the_steps_of_the_image_run_in_an_overlay(tmp_path: Path) -> None:
    """Its Python is this one, with its packages; nothing is reached over a network."""
    packages = [Path(path) for path in sys.path if "-packages" in path]
    entries = {entry.name: entry for path in reversed(packages) for entry in path.iterdir()}
    site = f"/image/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    readable = {parent for path in (*packages, Path(sys.base_prefix)) for parent in (path, *path.parents)}
    before = [
        OVERLAY,
        *(f'chmod a+rx "$root"{shlex.quote(str(path))}' for path in sorted(readable)),
        # as from Python 3.12 on: a new environment has no setuptools, older than the one that torch needs
        f"""sed -i "s/('setuptools', 'pip')/('pip',)/; /_SETUPTOOLS_VERSION, /d" "$root"{ensurepip.__file__}""",
        f'chroot "$root" {sys.executable} -m venv --without-pip /image',
        *(
            f'ln -s {shlex.quote(str(entry))} "$root{site}"/'
            for name, entry in entries.items()
            if "bertkit" not in name
        ),
    ]
    environment = {"PATH": f"/image/bin:{BASE_PATH}", "PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0"}
    run_image(tmp_path, "\n".join(before), environment, "--net")


@pytest.mark.slow
def test_the_steps_of_the_image_run_in_a_fresh_debian(tmp_path: Path) -> None:
    """With Debian's own Python; pip and uv find packages where they do outside."""
    if shutil.which("debootstrap") is None:
        pytest.skip("needs debootstrap")
    (release,) = re.findall(r"^FROM python:.*-(\w+)$", read("Dockerfile"), re.MULTILINE)
    wanted = "--include=ca-certificates,python3,python3-venv"
    subprocess.run(["debootstrap", "--variant=minbase", wanted, release, tmp_path], check=True, capture_output=True)
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True)
    settings = re.findall(r"^[\w:]+\.([\w.-]+)='(.*)'$", listed.stdout, re.MULTILINE)
    environment = {f"PIP_{name.lstrip('.').upper().replace('-', '_')}": value for name, value in settings}
    environment |= {
        name: value for name, value in os.environ.items() if re.match("PIP_|UV_|SSL_|(?i:https?_proxy)", name)
    }
    places = {Path(place) for value in environment.values() for place in re.findall(r"(?:file://|^)(/[^\s:]+)", value)}
    before = []
    for place in sorted({*places, Path("/etc/resolv.conf"), Path("/etc/ssl/certs/ca-certificates.crt")}):
        make = "mkdir -p" if place.is_dir() else "touch"
        if place.exists():
            before += [
                f'mkdir -p "$root{place.parent}"',
                f'{make} "$root{place}"',
                f'mount --bind {place} "$root{place}"',
            ]
    run_image(tmp_path, "\n".join(before), {"PATH": BASE_PATH, **environment})
    shutil.rmtree(tmp_path)  # a gigabyte
