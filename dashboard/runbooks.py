"""Runbooks: Markdown to safe HTML, from Postgres or, while it is unavailable, from their files."""

import re
from dataclasses import dataclass

from django.conf import settings
from django.db import InterfaceError, OperationalError
from django.urls import get_script_prefix
from django.utils.safestring import SafeString
from markdown_it import MarkdownIt

from controlplane.policies.models import Runbook
from fuseboard.contract.words import is_slug

_FOLDER = settings.BASE_DIR / "docs" / "runbooks"
# Raw HTML is displayed as text, and links that run script are not links.
_markdown = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")
_TITLE = re.compile(r"\A\s*#\s+(.+)\n")
_FIRST = re.compile(r"\A\s*(.+?)(?:\n\n|\Z)", re.DOTALL)
_SYMPTOM = re.compile(r"^## Symptom\s+(.+?)(?:\n\n|\n##|\Z)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Page:
    slug: str
    title: str
    body: str

    @property
    def html(self) -> SafeString:
        tokens = _markdown.parse(_TITLE.sub("", self.body, count=1))
        for part in tokens:
            for token in part.children or ():
                href = str(token.attrGet("href") or "")
                if href.startswith("/") and not href.startswith("//"):
                    # A page of this site: of the environment that the reader looks at.
                    token.attrSet("href", get_script_prefix() + href.removeprefix("/"))
        text: str = _markdown.renderer.render(tokens, _markdown.options, {})
        # Safe: rendered with raw HTML disabled.
        return SafeString(text)

    @property
    def symptom(self) -> str:
        """When to open it, for the list: its symptom, or its first paragraph."""
        found = _SYMPTOM.search(self.body) or _FIRST.search(_TITLE.sub("", self.body, count=1))
        return " ".join(found[1].replace("`", "").replace("*", "").split()) if found else ""


def every_runbook() -> list[Page]:
    """Those in Postgres, and files that are not loaded there: alerts link to some of them."""
    try:
        pages = {row.slug: Page(row.slug, row.title, row.body) for row in Runbook.objects.all()}
    except (OperationalError, InterfaceError):
        pages = {}  # The files have to do, as for one page.
    for file in _FOLDER.glob("*.md"):
        page = _from_file(file.stem)
        if page is not None:
            pages.setdefault(file.stem, page)
    return sorted(pages.values(), key=lambda page: page.title)


def find_runbook(slug: str) -> Page | None:
    try:
        row = Runbook.objects.filter(slug=slug).first()
    except (OperationalError, InterfaceError):
        row = None  # Runbooks matter most when a store is down, so the file has to do.
    return _from_file(slug) if row is None else Page(row.slug, row.title, row.body)


def _from_file(slug: str) -> Page | None:
    file = _FOLDER / f"{slug}.md"
    if not is_slug(slug) or not file.is_file():
        return None
    body = file.read_text(encoding="utf-8")
    title = _TITLE.match(body)
    return Page(slug, title[1].strip() if title else slug, body)
