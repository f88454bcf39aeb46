"""No wrong word in pages, API, and command line. ``tools/prose/words/words.json`` lists them."""

import argparse
import ast
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import get_commands, load_command_class

from controlplane.api.api import api
from fuseboard.cli import _parser

ROOT = Path(__file__).resolve().parents[2]
WRONG = [
    (re.compile(rf"\b(?:{entry['wrong']})\b", re.IGNORECASE), entry["use"])
    for entry in json.loads((ROOT / "tools/prose/words/words.json").read_text())
]
#: Where a text stands, and the text.
Text = tuple[str, str]

#: Names in a text are not prose: options, variables, fields, paths.
_NAMES = re.compile(r"`[^`]*`|--[\w-]+|\b\w*[_.]\w+\b|<[^>]*>")
_TAGS = re.compile(r"\{%.*?%\}|\{#.*?#\}|\{\{.*?\}\}|<(script|style)\b.*?</\1>|<!--.*?-->", re.DOTALL)
_ATTRIBUTES = re.compile(r"\b(?:aria-label|title|placeholder|alt|content)=\"([^\"]*)\"")


def in_templates() -> Iterator[Text]:
    for folder in ("dashboard/templates", "controlplane/templates"):
        for file in sorted((ROOT / folder).rglob("*.html")):
            text = re.sub(r"\{% comment %\}.*?\{% endcomment %\}", "", file.read_text(), flags=re.DOTALL)
            text = _TAGS.sub(" ", text)
            for said in (re.sub(r"<[^>]*>", " ", text), *_ATTRIBUTES.findall(text)):
                yield str(file.relative_to(ROOT)), " ".join(said.split())


def in_python(*patterns: str) -> Iterator[Text]:
    """Every text of several words that is not a docstring, without the story of the demo."""
    for pattern in patterns:
        for file in sorted(ROOT.glob(pattern)):
            if "migrations" in file.parts or "story" in file.parts:
                continue
            tree = ast.parse(file.read_text())
            documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
            docstrings = {
                id(node.body[0].value)
                for node in ast.walk(tree)
                if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
            }
            for node in ast.walk(tree):
                text = isinstance(node, ast.Constant) and isinstance(node.value, str)
                if text and " " in node.value and id(node) not in docstrings:
                    yield f"{file.relative_to(ROOT)}:{node.lineno}", node.value


def in_openapi(node: Any, where: str = "") -> Iterator[Text]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key in ("description", "summary") and isinstance(value, str):
                yield where, value
            elif key not in ("example", "examples"):
                yield from in_openapi(value, f"{where}/{key}")
    elif isinstance(node, list):
        for value in node:
            yield from in_openapi(value, where)


def in_help(parser: argparse.ArgumentParser) -> Iterator[Text]:
    yield parser.prog, " ".join(parser.format_help().split())
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from in_help(command)


def of_pages() -> Iterator[Text]:
    yield from in_templates()
    yield from in_python("dashboard/**/*.py", "controlplane/alerts/**/*.py", "controlplane/status/*.py")


def of_api() -> Iterator[Text]:
    yield from in_openapi(api.get_openapi_schema())
    yield from in_python("controlplane/**/*.py")


def of_command_line() -> Iterator[Text]:
    yield from in_help(_parser())
    for name, app in get_commands().items():
        if isinstance(app, str) and app.startswith("controlplane"):
            yield from in_help(load_command_class(app, name).create_parser("manage.py", name))
    yield from in_python("agents/**/*.py")


def wrong_words(texts: Iterable[Text]) -> list[str]:
    return sorted(
        {
            f"{where}: {found[0]!r} in {text[max(0, found.start() - 30) : found.end() + 30]!r}: use {use}"
            for where, text in ((where, _NAMES.sub("NAME", text)) for where, text in texts)
            for wrong, use in WRONG
            for found in wrong.finditer(text)
        }
    )


@pytest.mark.parametrize("texts", [of_pages, of_api, of_command_line], ids=lambda texts: texts.__name__)
def test_no_text_has_a_wrong_word(texts):
    wrong = wrong_words(texts())
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("Show it on the board.", "board"),
        ("Show it on the dashboard.", ""),
        ("It was made anew.", "anew"),
        ("An operator holds the breaker: the hold ends in 5 min.", "the hold"),
        ("Use `--nobody` or $NOBODY_KNOWS.", ""),
        ("Nobody has this name.", "Nobody"),
        ("Limits of its own.", "of its own"),
    ],
)
def test_what_is_wrong_and_what_is_not(text, wrong):
    found = wrong_words([("here", text)])
    assert [re.match(r"here: '(.*?)' in", line)[1] for line in found] == ([wrong] if wrong else [])
