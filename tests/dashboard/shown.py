"""What a page displays, without its markup: tests of words do not depend on how a template is wrapped."""

import re
from html import unescape

_INLINE = re.compile(r"</?(?:a|b|code|em|i|q|small|span|time)\b[^>]*>")
_TAG = re.compile(r"<[^>]*>")


def text_of(html: str) -> str:
    """The words of a page, one space between any two."""
    return " ".join(unescape(_TAG.sub(" ", _INLINE.sub("", html))).split())
