"""The samples of docs/envoy.md."""

import re
from pathlib import Path
from textwrap import dedent

PAGE = Path(__file__).resolve().parents[2] / "docs/envoy.md"


def sample(begins: str, kind: str = "yaml") -> str:
    """The block of the page that begins so."""
    blocks = re.findall(rf"^ *```{kind}\n(.*?)^ *```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (found,) = (block for block in map(dedent, blocks) if block.startswith(begins))
    return found
