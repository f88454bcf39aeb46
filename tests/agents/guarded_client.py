"""A program of ``test_guard_versions``: guards a client of one package, and fails if it lost a setting."""

import importlib.metadata
import sys
from typing import Any

import pytest

import fuseboard
from fuseboard import Misconfigured, blocking
from fuseboard.settings import AgentSettings

#: A vendor that refuses every connection.
URL = "http://127.0.0.1:1"


def requests_session(library: Any, agent: blocking.Agent) -> Any:
    session, adapter = library.Session(), library.adapters.HTTPAdapter(pool_maxsize=3)
    session.mount("http://", adapter)
    fuseboard.guard(session, agent, "api")
    assert session.get_adapter(URL)._adapter is adapter
    return session


def httpx_client(library: Any, agent: blocking.Agent) -> Any:
    proxied = library.HTTPTransport(proxy="http://127.0.0.1:2")
    limits, timeout = library.Limits(max_connections=7), library.Timeout(1.5)
    client = library.Client(limits=limits, timeout=timeout, mounts={"all://proxied.invalid": proxied})
    inner, mounts = client._transport, client._mounts
    fuseboard.guard(client, agent, "api")
    assert client._transport._transport is inner
    assert proxied in [one and one._transport for one in client._mounts.values()]
    assert (len(client._mounts), client.timeout) == (len(mounts), timeout)
    return client


def model_client(kind: Any, agent: blocking.Agent) -> Any:
    client = kind(api_key="made-up", base_url=URL, timeout=7)
    inner = client._client._transport
    fuseboard.guard(client, agent, "api", retry=False)
    assert client._client._transport._transport is inner
    assert (client.max_retries, client.timeout) == (0, 7)
    assert client.with_options(timeout=3)._client is client._client
    return client


def ask(client: Any) -> None:
    """One request. It must fail as requests of this client do."""
    with pytest.raises(Exception) as raised:  # noqa: PT011 - each library has its own class
        client.models.list() if hasattr(client, "models") else client.get(URL)
    assert "Connect" in raised.type.__name__


def main(package: str, minor: str) -> None:
    installed = importlib.metadata.version(package)
    assert installed.startswith(f"{minor}."), installed
    agent, admitted = blocking.Agent(settings=AgentSettings(redis_url="off")), list[str]()
    admit: Any = agent.admit_call

    def counted(dependency: str, **options: Any) -> Any:
        admitted.append(dependency)
        return admit(dependency, **options)

    agent.admit_call = counted  # type: ignore[method-assign]
    library: Any = importlib.import_module(package)
    if package == "requests":
        client = requests_session(library, agent)
    elif package in ("httpx", "httpx2"):
        client = httpx_client(library, agent)
    else:
        client = model_client(library.OpenAI if package == "openai" else library.Anthropic, agent)
    with pytest.raises(Misconfigured, match="guarded already"):
        fuseboard.guard(client, agent, "api")
    ask(client)
    assert admitted == ["api"]
    agent.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
