"""Completion scripts for commands and options, made from the parser itself, so none is forgotten.

Names of tenants and dependencies are not completed: that would call the API with every key.
"""

import argparse
from collections.abc import Iterator

SHELLS = ("bash", "zsh", "fish")


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    words = dict(_words(parser, ()))
    if shell == "fish":
        return _fish(words)
    body = _bash(words)
    return f"autoload -U +X bashcompinit && bashcompinit\n{body}" if shell == "zsh" else body


def _words(
    parser: argparse.ArgumentParser, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Command, as the words after ``fuseboard`` -> what may follow it."""
    found: list[str] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found += list(action.choices)
            for name, child in action.choices.items():
                yield from _words(child, (*path, name))
        elif action.option_strings:
            found.append(action.option_strings[-1])
        elif action.choices:
            found += map(str, action.choices)
    yield path, sorted(found)


def _bash(words: dict[tuple[str, ...], list[str]]) -> str:
    cases = "\n".join(
        f'    "{" ".join(path)}") words="{" ".join(found)}" ;;' for path, found in words.items()
    )
    return f"""_fuseboard() {{
  local word words="" path="" known
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case "$word" in -*) continue ;; esac
    known="${{path:+$path }}$word"
    case "|{"|".join(" ".join(path) for path in words)}|" in *"|$known|"*) path="$known" ;; esac
  done
  case "$path" in
{cases}
  esac
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
  [ ${{#COMPREPLY[@]}} -eq 0 ] && COMPREPLY=($(compgen -f -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -F _fuseboard fuseboard
"""


def _fish(words: dict[tuple[str, ...], list[str]]) -> str:
    lines = []
    for path, found in words.items():
        children = {
            other[len(path)] for other in words if other[: len(path)] == path and len(other) > len(path)
        }
        seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in path) or "true"
        none = f"; and not __fish_seen_subcommand_from {' '.join(sorted(children))}" if children else ""
        for word in found:
            option = f"-l {word[2:]}" if word.startswith("--") else f"-a {word}"
            lines.append(f"complete -c fuseboard -n '{seen}{none}' {option}")
    return "\n".join(lines) + "\n"
