"""Scripts that complete commands and settings in a shell: `source <(bertkit --completion bash)`.

They hold all words, so that a completion starts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from bertkit.config import conf_dir, option_names
from bertkit.errors import InputError
from bertkit.settings.help import COMMANDS
from bertkit.settings.words import OPTIONS, VALUED_OPTIONS

BASH = """\
# bash completion of bertkit; to keep it: bertkit --completion bash > ~/.local/share/bash-completion/completions/bertkit
_bertkit() {{
  local line="${{COMP_LINE:0:COMP_POINT}}" word words
  word="${{line##*[[:space:]]}}"
  case "${{COMP_WORDS[1]}}" in
{cases}
    *) words="{commands}" ;;
  esac
  [[ $COMP_CWORD -eq 1 ]] && words="{commands}"
  [[ $word == -* ]] && words="{options}"
  local prefix=""
  [[ $word == *=* ]] && prefix="${{word%=*}}="
  COMPREPLY=($(compgen -W "$words" -- "$word"))
  COMPREPLY=("${{COMPREPLY[@]#"$prefix"}}")  # bash takes what follows = for a word of its own
  [[ -n $prefix && ${{#COMPREPLY[@]}} -eq 0 ]] && COMPREPLY=($(compgen -f -- "${{word##*=}}"))
  [[ ${{COMPREPLY[0]}} == *= ]] && compopt -o nospace
  return 0
}}
complete -F _bertkit bertkit
"""
ZSH = """\
#compdef bertkit
# zsh completion of bertkit; to keep it: bertkit --completion zsh > a directory of $fpath, as _bertkit
_bertkit() {{
  local -a found
  if (( CURRENT == 2 )); then
    found=({commands} {options})
    compadd -- $found
    return
  fi
  case $words[2] in
{cases}
  esac
  compadd -S '' -- $found {options}
  compset -P '*=' && _files
}}
compdef _bertkit bertkit
"""
FISH = """\
# fish completion of bertkit; to keep it: bertkit --completion fish > ~/.config/fish/completions/bertkit.fish
complete -c bertkit -f -n __fish_use_subcommand -a '{commands}'
complete -c bertkit -a '{options}' -n 'string match -q -- "-*" (commandline -ct)'
{cases}
"""
SHELLS = {
    "bash": (BASH, '    {command}) words="{words}" ;;'),
    "zsh": (ZSH, "    {command}) found=({words}) ;;"),
    "fish": (FISH, "complete -c bertkit -n '__fish_seen_subcommand_from {command}' -a '{words}'"),
}


def script(shell: str) -> str:
    """Give the script of a shell.

    Raises:
        InputError: an unknown shell.
    """
    if shell not in SHELLS:
        raise InputError(f"--completion {shell}: expected {', '.join(SHELLS)}")
    text, case = SHELLS[shell]
    cases = [case.format(command=command, words=" ".join(words_of(command))) for command in COMMANDS]
    options = (*OPTIONS, *VALUED_OPTIONS)
    return text.format(
        commands=" ".join((*COMMANDS, "help")), options=" ".join(options), cases="\n".join(cases)
    ).rstrip()


def words_of(command: str) -> list[str]:
    """Give the settings of a command as `name=`, and the options of its groups as `group=option`."""
    directory = conf_dir()
    content = _read(command)
    groups = option_names([directory])
    words = _names({key: value for key, value in content.items() if key not in ("defaults", *groups)})
    for entry in content["defaults"]:
        for group, default in entry.items() if isinstance(entry, dict) else ():
            options = groups.get(group, [])
            words += [f"{group}={option}" for option in options]
            option = default if default in options else "sequence" if group == "task" else None
            words += _names({group: _read(f"{group}/{option}")}) if option else []
    if command == "glue":
        words += [word for word in words_of("finetune") if not word.startswith(("task=", "seed="))]
    return sorted(set(words))


def _read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((conf_dir() / f"{name}.yaml").read_text(encoding="utf-8"))
    return content


def _names(mapping: Mapping[str, Any], prefix: str = "") -> list[str]:
    names: list[str] = []
    for key, value in mapping.items():
        names += _names(value, f"{prefix}{key}.") if isinstance(value, dict) else [f"{prefix}{key}="]
    return names
