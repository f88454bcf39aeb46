"""Write the pages of docs/ that come from code: the reference of the agent, and the glossary.

usage: python -m tools.docsite.write_pages [FOLDER]
"""

import enum
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fuseboard
from dashboard.words.glossary import GLOSSARY

DOCS = Path(__file__).resolve().parents[2] / "docs"
_NOTE = "<!-- Written by `make docs`: edit the docstrings instead. -->"
_GROUPS = ("functions", "classes", "errors", "words")
_CODE_BLOCK = re.compile(r"(?P<sentence>(?<=\S)|)::\n\n(?P<code>(?:(?: {4}.*)?\n)+)")


def agent_reference() -> str:
    """Each public name of ``fuseboard``, with its signature, its docstring, and its public methods."""
    names = {name: getattr(fuseboard, name) for name in fuseboard.__all__}
    parts = [f"# Reference of the agent\n\n{_NOTE}\n\n{_prose(inspect.getdoc(fuseboard) or '')}"]
    for group in _GROUPS:
        parts.append(f"## {group.capitalize()}")
        parts += (text for name, one in names.items() if _group(one) == group for text in _entry(name, one))
    return "\n\n".join(parts) + "\n"


def glossary() -> str:
    """The words of the pages, as *Help* shows them."""
    note = "<!-- Written by `make docs` from dashboard/words/glossary.py. -->"
    words = "\n".join(f"* **{word}**: {meaning}" for word, meaning in sorted(GLOSSARY))
    return f"# Glossary\n\n{note}\n\nThe words of the dashboard. *Help* shows them too.\n\n{words}\n"


def _group(one: object) -> str:
    if not inspect.isclass(one):
        return "functions"
    if issubclass(one, Exception):
        return "errors"
    return "words" if issubclass(one, enum.Enum) else "classes"


def _entry(name: str, one: Any) -> Iterator[str]:
    if inspect.ismodule(one):
        yield f"### `fuseboard.{name}`\n\n{_prose(inspect.getdoc(one) or '')}"
        return
    called = "" if _group(one) in ("errors", "words") else f"```python\n{_signature(name, one)}\n```\n\n"
    yield f"### `{name}`\n\n{called}{_prose(inspect.getdoc(one) or '')}".rstrip()
    if inspect.isclass(one) and issubclass(one, enum.Enum):
        yield "\n".join(f"* `{member.name}` = `{member.value}`" for member in one)
    elif inspect.isclass(one):
        yield from _methods(name, one)


def _methods(name: str, one: type) -> Iterator[str]:
    for method, found in inspect.getmembers(one):
        text = inspect.getdoc(found)
        if method.startswith("_") or not text or not _is_ours(found):
            continue
        if isinstance(found, property):
            yield f"#### `{name}.{method}`\n\n{_prose(text)}"
        elif callable(found):
            yield f"#### `{name}.{method}`\n\n```python\n{_signature(method, found)}\n```\n\n{_prose(text)}"


def _is_ours(found: object) -> bool:
    """Whether it is written in this package, and not inherited from Python."""
    code = found.fget if isinstance(found, property) else inspect.unwrap(found)  # type: ignore[arg-type]
    return getattr(code, "__module__", "").partition(".")[0] == "fuseboard"


def _signature(name: str, one: Callable[..., Any]) -> str:
    signature = inspect.signature(one)
    parameters = [each for each in signature.parameters.values() if each.name != "self"]
    text = str(signature.replace(parameters=parameters))
    # A caller needs no names of modules, but to tell two agents apart.
    text = text.replace("fuseboard.blocking.Agent", "blocking.Agent")
    text = re.sub(
        r"\b(?:fuseboard|collections|typing|datetime|contextlib)(?:\.[a-z_]+)*\.(?=[A-Z])", "", text
    )
    awaited = "async " if inspect.iscoroutinefunction(one) else ""
    return f"{awaited}{name}{text}".replace("~", "")


def _prose(text: str) -> str:
    """A docstring as Markdown."""
    text = text.replace("``", "`")
    return _CODE_BLOCK.sub(_fenced, f"{text}\n").strip()


def _fenced(block: re.Match[str]) -> str:
    """The code block of a docstring: it follows ``::``, which may end a sentence or stand alone."""
    colon = ":\n\n" if block["sentence"] else ""
    return f"{colon}```python\n{inspect.cleandoc(block['code'])}\n```\n\n"


PAGES: dict[str, Callable[[], str]] = {"agent-reference.md": agent_reference, "glossary.md": glossary}


def stale_pages() -> list[str]:
    """The pages of docs/ that come from code, and are older than it."""
    return [name for name, text in PAGES.items() if (DOCS / name).read_text() != text()]


def main(folder: Path) -> None:
    for name, text in PAGES.items():
        (folder / name).write_text(text())


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS)
