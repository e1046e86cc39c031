"""Words of other tools, from hints.yaml: the settings and commands that they mean, and advice about the others."""

import functools
from pathlib import Path

from bertkit.base.text_files import parse_yaml

BOOLEANS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


@functools.cache
def _table(section: str) -> dict[str, list[str]]:
    """Return a section of the table the other way round: what each name means."""
    table: dict[str, dict[str, str]] = parse_yaml(Path(__file__).with_name("hints.yaml").read_text(encoding="utf-8"))
    is_advice = section.startswith("advice")  # which is written behind the names, not before them
    rows = [(text, names) if is_advice else (names, text) for names, text in table[section].items()]
    return {name: [meant] if is_advice else meant.split() for meant, names in rows for name in names.split()}


def meanings(name: str) -> list[str]:
    """Return the settings that a name may mean, or, such as precision=fp16, assignments."""
    return _table("settings").get(_plain(name), [])


def advice(name: str) -> str:
    """Return what to do instead of setting a name; "" for nothing."""
    return "".join(_table("advice").get(_plain(name), []))


def command_meant(name: str) -> str:
    """Return the hint about a word that is no command, such as eval or run_mlm.py; "" for none."""
    plain = _plain(name.rpartition("/")[2].removesuffix(".py"))
    commands = _table("commands").get(plain, [])
    return "".join(
        [*(f"here it is bertkit {command}" for command in commands), *_table("advice_of_commands").get(plain, [])]
    )


def truth_of(value: object) -> bool | None:
    """Return a value as a truth value, in any tool's spelling; None if it is none."""
    return BOOLEANS.get(str(value).lower())


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")
