"""Web believes the proxies of ``FUSEBOARD_PROXIES`` which client a request comes from, and no others."""

from typing import Any

import pytest

from controlplane.management.commands.web import server_config

CLIENT, TOLD = "198.51.100.7", "203.0.113.9"


@pytest.mark.parametrize(
    ("behind", "connects", "seen"),
    [
        (True, "10.4.0.7", TOLD),
        (True, "10.5.0.7", "10.5.0.7"),
        (True, "fd00::7", TOLD),
        (True, "fd00::8", "fd00::8"),
        (False, "10.4.0.7", "10.4.0.7"),
    ],
)
async def test_only_a_proxy_says_which_client_asks(
    settings: Any, behind: bool, connects: str, seen: str
) -> None:
    settings.BEHIND_PROXY, settings.PROXIES = behind, ["10.4.0.0/24", "fd00::7"]
    found: list[str] = []

    async def application(scope: Any, *_: Any) -> None:
        found.append(scope["client"][0])

    config = server_config(application)
    config.load()
    # The first address is what the client itself has sent, and the last one what the proxy saw.
    headers = [(b"x-forwarded-for", f"{CLIENT}, {TOLD}".encode())]
    scope = {"type": "http", "client": (connects, 50_000), "headers": headers, "scheme": "http"}
    await config.loaded_app(scope, _nothing, _nothing)
    assert found == [seen]


async def _nothing(*_: Any) -> Any:
    """Neither asked nor answered."""
