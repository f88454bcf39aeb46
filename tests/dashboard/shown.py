"""What a page displays, without its markup: tests of words do not depend on how a template is wrapped."""

import re
from html import unescape
from typing import Any

_INLINE = re.compile(r"</?(?:a|b|code|em|i|q|small|span|time)\b[^>]*>")
_TAG = re.compile(r"<[^>]*>")


def text_of(html: str) -> str:
    """The words of a page, one space between any two."""
    return " ".join(unescape(_TAG.sub(" ", _INLINE.sub("", html))).split())


def undo_of(html: str) -> dict[str, Any]:
    """What the Undo of the notice after an edit would send."""
    form = html.partition('class="undo"')[2].partition("</form>")[0]
    found: dict[str, Any] = {}
    for name, value in re.findall(r'name="([^"]*)" value="([^"]*)"', form):
        found.setdefault(name, []).append(unescape(value))
    found.pop("csrfmiddlewaretoken", None)
    return {name: values[0] if len(values) == 1 else values for name, values in found.items()}
