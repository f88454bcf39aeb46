"""How Sphinx draws docs/ as a site. The documents are plain Markdown, whose links work in any other viewer.

The side bar has what docs/index.md links to, in its order: each section is a group.
"""

import posixpath
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

project = "Fuseboard"
author = "The authors of Fuseboard"
extensions = ["myst_parser", "sphinx_copybutton"]
root_doc = "docs/index"
source_suffix = {".md": "markdown"}
_BESIDE_DOCS = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "tools/changes/README.md"]
include_patterns = ["docs/**", "deploy/**", *_BESIDE_DOCS]
exclude_patterns = [".*", "agents", "controlplane", "dashboard", "tests", "build"]
# Links to headings, as other viewers of Markdown make them.
myst_heading_anchors = 4
myst_enable_extensions = ["tasklist"]
html_theme = "furo"
html_title = "Fuseboard"
html_show_sourcelink = False

_SECTION = re.compile(r"^## (?P<title>[^\n:]+)[^\n]*\n(?P<body>.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?P<page>[^)#:]+)\.md(?:#[^)]*)?\)")
#: Words of a runbook that only the dashboard fills in.
_VALUE = re.compile(r"\{\{.*?\}\}")
_ACTION = re.compile(r"^```action (?P<name>[a-z-]+).*?^```$", re.MULTILINE | re.DOTALL)
_PAGE_OF_DASHBOARD = re.compile(r"\[(?P<text>[^\]]+)\]\(/[^)]*\)")


def add_side_bar(index: str) -> str:
    """The text of docs/index.md with a hidden table of contents for each of its sections."""
    seen: set[str] = set()
    tables = []
    for section in _SECTION.finditer(index):
        pages = [page for page in linked_pages(section["body"], "/docs") if page not in seen]
        seen.update(pages)
        tables.append(contents(pages, f":caption: {section['title']}\n"))
    return f"{index}\n" + "\n".join(tables)


def linked_pages(text: str, folder: str) -> list[str]:
    """The documents that a text in this folder links to, each once, as Sphinx names them."""
    found = (posixpath.normpath(f"{folder}/{match['page']}") for match in _LINK.finditer(text))
    return list(dict.fromkeys(found))


def contents(pages: list[str], options: str = "") -> str:
    """A table of contents that only the side bar shows."""
    return f"```{{toctree}}\n:hidden:\n{options}\n" + "\n".join(pages) + "\n```\n"


def drawn_runbook(text: str) -> str:
    """The text of a runbook without what only the dashboard can show."""
    text = _VALUE.sub("(on the dashboard)", text)
    text = _ACTION.sub(
        lambda match: f"*The dashboard has a button here: {match['name'].replace('-', ' ')}.*", text
    )
    return _PAGE_OF_DASHBOARD.sub(r"*\g<text>*", text)


def _read(_app: "Sphinx", page: str, text: list[str]) -> None:
    if page == root_doc:
        text[0] = add_side_bar(text[0])
    elif page == "docs/adr/README":
        text[0] += "\n" + contents(linked_pages(text[0], "/docs/adr"))
    elif page == "docs/api-reference":
        text[0] += '\n<p><a href="../api/index.html">Open the reference</a></p>\n'
    elif page.startswith("docs/runbooks/"):
        text[0] = drawn_runbook(text[0])


def setup(app: "Sphinx") -> None:
    """Called by Sphinx."""
    app.connect("source-read", _read)
