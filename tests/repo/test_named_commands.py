"""Every command that a text of this repository tells a reader to run exists, with the options it is given."""

import argparse
import importlib.util
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import get_commands, load_command_class

from fuseboard.cli import _parser

ROOT = Path(__file__).resolve().parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", MAKEFILE, re.MULTILINE))

#: A command starts a line, or follows a quotation mark, a bracket, a shell operator or a comment sign.
START = r"""(?:^|[`"'(]|&&|\|\||[$#>]|\brun)[ \t]*"""
#: Where the command ends: at the end of the code span, at a comment, or where the next command begins.
REST = r"""(?P<rest>[^\n`#;]*?)(?=[\n`#;]|&&|\s{3,}|$)"""

#: In code, ``{COMMAND}`` is one or the other.
MANAGE = re.compile(
    rf"(?:python3? |{START}|/bin/)(?:manage\.py|fuseboard-server|\{{COMMAND\}}) (?P<name>[a-z_]+){REST}",
    re.MULTILINE,
)
#: In quotation marks only when nothing else is between them: help texts begin with the verb.
MAKE = re.compile(
    r"""(?:`|(?P<quote>["'])|^[ \t]*|&&[ \t]*)make (?:-k )?(?P<name>[a-z][a-z-]*)"""
    r"""(?P<rest>(?: [A-Z]+=[\w"-]+)*)(?(quote)(?P=quote))""",
    re.MULTILINE,
)
FUSEBOARD = re.compile(
    rf"(?:{START}|\S\s{{3,}})fuseboard (?P<rest>[a-z][^\n`#;]*?)(?=[\n`#;]|</code>|&&|\s{{3,}}|$)",
    re.MULTILINE,
)
MODULE = re.compile(r"\bpython3? -m (?P<name>[a-z][\w.]*)")

#: Text that starts like a command and is none: why it is in the repository.
NO_COMMANDS = {
    "fuseboard second factors": "the purpose of a derived key",
}


def texts() -> list[str]:
    names = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, text=True)
    kinds = (
        ".py",
        ".md",
        ".html",
        ".yml",
        ".yaml",
        ".toml",
        ".lua",
        ".sh",
        ".js",
        ".svg",
        "Dockerfile",
        "run",
    )
    return [
        name
        for name in names.split()
        if name.endswith(kinds) and name != "tests/repo/test_named_commands.py" and (ROOT / name).is_file()
    ]


def wrong_commands(name: str, text: str) -> Iterator[str]:
    """What a reader could not run, with the reason."""
    for found in MANAGE.finditer(text):
        yield from _wrong_manage(found["name"], found["rest"])
    for found in MAKE.finditer(text):
        if _is_prose(name, text, found):
            continue
        yield from _wrong_make(found["name"], found["rest"])
    for found in FUSEBOARD.finditer(text):
        if not any(found[0].strip(" `\"'(").startswith(known) for known in NO_COMMANDS):
            yield from _wrong_fuseboard(found["rest"])
    for found in MODULE.finditer(text):
        if not _module_exists(found["name"].rstrip(".")):
            yield f"python -m {found['name']}: no such module"


def _wrong_manage(name: str, rest: str) -> Iterator[str]:
    known = get_commands()
    if name not in known:
        yield f"manage.py {name}: no such command"
        return
    app = known[name]
    command = app if not isinstance(app, str) else load_command_class(app, name)
    yield from _wrong_options(f"manage.py {name}", command.create_parser("manage.py", name), rest)


def _wrong_make(name: str, rest: str) -> Iterator[str]:
    if name not in TARGETS:
        yield f"make {name}: no such target"
    for variable in re.findall(r" ([A-Z]+)=", rest):
        if f"$({variable})" not in MAKEFILE:
            yield f"make {name} {variable}=: the Makefile does not read it"


def _wrong_fuseboard(rest: str) -> Iterator[str]:
    """``fuseboard ctl extend | end NAME`` names two commands; both must exist."""
    parser, said = _parser(), "fuseboard"
    words = re.split(r"\s+", rest.replace("|", " | ").strip())
    while words and (choices := _commands_of(parser)):
        word = words.pop(0)
        ends = word[-1] in ":,."  # "fuseboard ctl: not found", or the end of a sentence
        word = re.sub(r"\W+$", "", word)
        if not word:
            return  # "..."
        if word not in choices:
            yield f"{said} {word}: no such command"
            return
        others = _alternatives(words)
        yield from (f"{said} {other}: no such command" for other in others if other not in choices)
        parser, said = choices[word], f"{said} {word}"
        if others or ends:
            return
    yield from _wrong_options(said, parser, rest)


def _alternatives(words: list[str]) -> list[str]:
    found = []
    while len(words) > 1 and words[0] == "|":
        found.append(words[1])
        del words[:2]
    return found


def _commands_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _wrong_options(said: str, parser: Any, rest: str) -> Iterator[str]:
    known = parser._option_string_actions
    for option in re.findall(r"(?<!\S)--[a-z][a-z-]*", rest):
        if option not in known:
            yield f"{said} {option}: no such option"


def _module_exists(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _is_prose(name: str, text: str, found: re.Match[str]) -> bool:
    """A line of prose may begin with the verb; one of a code block does not."""
    if found[0].lstrip()[0] != "m":
        return False
    in_block = text[: found.start() + 1].count("\n```") % 2 == 1
    return not (name.endswith(".md") and in_block)


def test_every_command_that_a_text_names_exists() -> None:
    wrong = {
        f"{name}: {problem}"
        for name in texts()
        for problem in wrong_commands(name, (ROOT / name).read_text())
    }
    assert not wrong, "\n".join(sorted(wrong))


@pytest.mark.parametrize(
    ("name", "text", "wrong"),
    [
        ("a.py", "'python manage.py rebuild_redis'", "manage.py rebuild_redis: no such command"),
        ("a.md", "Run `manage.py republish --newest`.", "manage.py republish --newest: no such option"),
        ("a.md", "`make tests` runs them", "make tests: no such target"),
        ("a.md", "\n```sh\nmake demo TRY=1\n```", "make demo TRY=: the Makefile does not read it"),
        ("a.py", '"or `fuseboard docter` in the pod"', "fuseboard docter: no such command"),
        ("a.md", "\n```sh\nfuseboard ctl quota put acme\n```", "fuseboard ctl quota put: no such command"),
        ("a.md", "`fuseboard ctl extend | stop payments-api`", "fuseboard ctl stop: no such command"),
        ("a.md", "`fuseboard explain --tenants acme`", "fuseboard explain --tenants: no such option"),
        ("a.py", "``python -m tools.demo.shop``", "python -m tools.demo.shop: no such module"),
    ],
)
def test_a_command_that_does_not_exist_is_found(name: str, text: str, wrong: str) -> None:
    assert list(wrong_commands(name, text)) == [wrong]


@pytest.mark.parametrize(
    "text",
    [
        "Two edits make no sense together.\nmake them one by one",
        "`fuseboard ctl ...` and `fuseboard ctl quota set acme requests --limit 5 --reason x`",
        "`make demo CHECK=all`, `manage.py republish production --new-epoch --reason ...`",
    ],
)
def test_a_command_that_exists_is_left_alone(text: str) -> None:
    assert list(wrong_commands("a.md", text)) == []
