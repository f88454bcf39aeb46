"""Processes listen where a network has IPv6 alone."""

import socket

import httpx
import pytest
from django.core.management.base import CommandError

from controlplane.listening import listen
from controlplane.worker_metrics import MetricsServer


def _has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def test_web_and_gateways_listen_with_ipv6_or_say_that_the_machine_has_none() -> None:
    def opened() -> socket.socket:
        return listen("::", 0, exactly=True, say=print)

    if _has_ipv6():
        with opened() as listening:
            socket.create_connection(("::1", listening.getsockname()[1]), timeout=60).close()
    else:
        with pytest.raises(CommandError, match="Cannot listen on ::"):
            opened()


def test_the_worker_listens_with_ipv6_or_ends_where_the_machine_has_none() -> None:
    def opened() -> MetricsServer:
        return MetricsServer("::", 0, {})

    if _has_ipv6():
        server = opened()
        try:
            url = f"http://[::1]:{server.port}/healthz"
            assert httpx.get(url, timeout=60, trust_env=False).status_code == 200
        finally:
            server.stop()
    else:
        with pytest.raises(OSError):  # noqa: PT011 - any that says that there is no such address
            opened()
