"""One word for each thing in everything a user reads: pages, descriptions of the API, help of commands.

ARCHITECTURE has the list of words. ``tools/lint_prose.py`` only advises; this test fails.
"""

import argparse
import ast
import json
import re
from collections.abc import Iterable, Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from django.core.management import get_commands, load_command_class

from controlplane.api.api import api
from fuseboard.cli import _parser

ROOT = Path(__file__).resolve().parents[2]

#: Also used by the prose linter: what is advice in prose is an error in what users read.
WORDS = json.loads((ROOT / "tools/prose/words/words.json").read_text())
#: On pages only: elsewhere a mutex is held, and ``server`` is a name on the wire.
ON_PAGES = (
    {"wrong": "hold|holds|held|holding", "use": "override; of a value: apply"},
    {"wrong": "servers?", "use": "pod; or the name of the process"},
    {"wrong": "beats?", "use": "heartbeat"},
    {"wrong": "by (itself|themselves)", "use": "automatically"},
)


def wrong_words(text: str, *words: dict[str, str]) -> list[str]:
    """Each wrong word with what to write."""
    return [
        f"{match.group()}: {word['use']}"
        for word in (*WORDS, *words)
        for match in re.finditer(rf"\b(?:{word['wrong']})\b", text, re.IGNORECASE)
    ]


# ---- pages

#: Visible though they are no text between tags.
_ATTRIBUTES = re.compile(r"(?:aria-label|placeholder|title|alt)=\"([^\"]*)\"")
_ARGUMENTS = re.compile(r"{%\s*(?:\w+_field|field|include|with)\b(.*?)%}")
_COMMENT = re.compile(r"{% comment %}.*?{% endcomment %}|{#.*?#}", re.DOTALL)
_TAG = re.compile(r"<[^>]*>")
_DJANGO = re.compile(r"{%.*?%}|{{.*?}}", re.DOTALL)


def _displayed(strings: Iterable[str]) -> Iterator[str]:
    """Those that people read: several words, or one with a capital letter."""
    yield from (found for found in strings if " " in found.strip() or re.fullmatch(r"[A-Z][a-z]+", found))


def texts_of_template(source: str) -> Iterator[str]:
    """The words of a template: between tags, in visible attributes, and in the arguments of fields."""
    source = _COMMENT.sub("", source)
    for arguments in _ARGUMENTS.findall(source):
        yield from _displayed(re.findall(r"\"([^\"]*)\"", arguments))
    source = _DJANGO.sub(" ", source)
    yield from _ATTRIBUTES.findall(source)
    yield unescape(_TAG.sub("\n", source))


def texts_of_python(source: str) -> Iterator[str]:
    """Strings of several words, without docstrings and the messages of logs."""
    tree = ast.parse(source)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield from _displayed([node.value])


def texts_of_script(source: str) -> Iterator[str]:
    source = re.sub(r"/\*.*?\*/|(?<!:)//[^\n]*", "", source, flags=re.DOTALL)
    yield from _displayed(re.findall(r"[\"`]([^\"`]*)[\"`]", source))


def page_texts() -> Iterator[tuple[str, str]]:
    templates = [
        *(ROOT / "dashboard").rglob("*.html"),
        *(ROOT / "controlplane" / "templates").rglob("*.html"),
    ]
    for path in templates:
        yield from ((path.name, text) for text in texts_of_template(path.read_text()))
    for path in (ROOT / "dashboard").rglob("*.py"):
        yield from ((str(path.relative_to(ROOT)), text) for text in texts_of_python(path.read_text()))
    for script in sorted((ROOT / "dashboard" / "static" / "dashboard").glob("*.js")):
        yield from ((script.name, text) for text in texts_of_script(script.read_text()))


def misused(texts: Iterable[tuple[str, str]], *words: dict[str, str]) -> list[tuple[str, str, str]]:
    return [
        (where, word, " ".join(text.split())[:120])
        for where, text in texts
        for word in wrong_words(text, *words)
    ]


def test_pages_use_the_words_of_the_product() -> None:
    assert misused(page_texts(), *ON_PAGES) == []


@pytest.mark.parametrize(
    "markup",
    [
        "<h2>Servers</h2>",
        "<p>It is\n  held open.</p>",
        '<input placeholder="Ask whoever">',
        '{% text_field "f-x" "Servers" name="x" %}',
        '{% include "a.html" with nothing="Nobody fits." %}',
    ],
)
def test_a_wrong_word_is_found_wherever_a_template_displays_it(markup: str) -> None:
    assert misused((("", text) for text in texts_of_template(markup)), *ON_PAGES)


@pytest.mark.parametrize(
    "markup",
    [
        "{% load dashboard_tags %}{% url 'servers' %}",
        "{% comment %}What nobody reads.{% endcomment %}",
        '<p class="held" id="servers">{{ row.server }} of the dashboard</p>',
        "<code>FUSEBOARD_SERVER</code>",
    ],
)
def test_names_in_the_markup_are_no_words(markup: str) -> None:
    assert not misused((("", text) for text in texts_of_template(markup)), *ON_PAGES)


# ---- API and commands


def api_texts(part: Any, where: str = "") -> Iterator[tuple[str, str]]:
    """Every summary and description of the OpenAPI document; titles are made from the names of fields."""
    if isinstance(part, dict):
        for key, value in part.items():
            if key in ("summary", "description") and isinstance(value, str):
                yield where, value
            else:
                yield from api_texts(value, f"{where}/{key}")
    elif isinstance(part, list):
        for number, value in enumerate(part):
            yield from api_texts(value, f"{where}/{number}")


def help_texts(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """Every help and description of a command and those below it."""
    yield from ((parser.prog, text) for text in (parser.description, parser.epilog) if text)
    for action in parser._actions:
        if action.help and action.help != argparse.SUPPRESS:
            yield parser.prog, action.help
        if isinstance(action, argparse._SubParsersAction):
            yield from ((parser.prog, choice.help) for choice in action._choices_actions if choice.help)
            for below in dict.fromkeys(action.choices.values()):
                yield from help_texts(below)


def test_descriptions_of_the_api_use_the_words_of_the_product() -> None:
    schema = json.loads(json.dumps(api.get_openapi_schema(), default=str))
    assert misused(api_texts(schema)) == []


def test_help_of_commands_uses_the_words_of_the_product() -> None:
    commands = {name: app for name, app in get_commands().items() if str(app).startswith("controlplane")}
    parsers = [
        load_command_class(app, name).create_parser("manage.py", name) for name, app in commands.items()
    ]
    assert len(parsers) > 5
    assert misused(text for parser in (_parser(), *parsers) for text in help_texts(parser)) == []
