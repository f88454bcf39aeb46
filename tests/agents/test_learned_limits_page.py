"""Runs the code in docs/learned-limits.md as it is."""

import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from fuseboard.integrations.httpx import GuardedTransport

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "learned-limits.md").read_text()


async def test_the_code_of_the_page_guards_a_client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("FUSEBOARD_REDIS_URL", "off")
    monkeypatch.setenv("FUSEBOARD_STATE_DIR", str(tmp_path))
    names: dict[str, Any] = {}
    for code in re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL):
        exec(compile(code, "docs/learned-limits.md", "exec"), names)  # noqa: S102 - our own page
    client = names["github"]
    assert isinstance(client, httpx.AsyncClient)
    assert isinstance(client._transport, GuardedTransport)
    await client.aclose()
