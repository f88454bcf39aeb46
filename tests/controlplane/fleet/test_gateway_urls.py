"""Which gateways ``FUSEBOARD_GATEWAY_URL`` names: with ``dns+``, each address that a name has now."""

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from controlplane import env
from controlplane.fleet import gateway_urls as module
from controlplane.fleet.gateway_urls import gateway_urls
from tests.waiting import wait_until

NAME = "dns+http://gateway:8001"


class NameServer:
    """What ``getaddrinfo`` answers: the one thing here that is not real."""

    def __init__(self) -> None:
        self.addresses: list[tuple[int, str]] = []
        self.asked = 0
        self.answers = threading.Event()
        self.answers.set()

    def look_up(self, host: str, port: int, **_: Any) -> list[Any]:
        self.asked += 1
        self.answers.wait(30)
        if host != "gateway" or not self.addresses:
            raise socket.gaierror("Name or service not known")
        return [(family, socket.SOCK_STREAM, 6, "", (address, port)) for family, address in self.addresses]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch, settings: Any) -> Iterator[NameServer]:
    server = NameServer()
    monkeypatch.setattr(module.socket, "getaddrinfo", server.look_up)
    monkeypatch.setattr(module, "_names", module.Names())
    monkeypatch.setattr(module, "KEPT_S", 0.0)
    settings.GATEWAY_URLS = [NAME]
    yield server
    server.answers.set()


def v4(*addresses: str) -> list[tuple[int, str]]:
    return [(socket.AF_INET, address) for address in addresses]


def test_gateways_come_and_go_without_a_restart(names: NameServer) -> None:
    names.addresses = v4("10.0.0.2", "10.0.0.1")
    assert gateway_urls() == ["http://10.0.0.1:8001", "http://10.0.0.2:8001"]
    names.addresses = v4("10.0.0.2", "10.0.0.3")
    assert gateway_urls() == ["http://10.0.0.2:8001", "http://10.0.0.3:8001"]


def test_a_gateway_with_two_families_is_asked_once(names: NameServer) -> None:
    names.addresses = [(socket.AF_INET6, "fd00::1"), (socket.AF_INET, "10.0.0.1")]
    assert gateway_urls() == ["http://[fd00::1]:8001"]


def test_an_address_is_not_looked_up_for_each_question(
    names: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KEPT_S", 3600.0)
    names.addresses = v4("10.0.0.1")
    assert [gateway_urls() for _ in range(5)] == [["http://10.0.0.1:8001"]] * 5
    assert names.asked == 1


def test_without_a_name_server_the_last_addresses_count(
    names: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    names.addresses = v4("10.0.0.1")
    assert gateway_urls() == ["http://10.0.0.1:8001"]
    names.addresses = []
    assert gateway_urls() == ["http://10.0.0.1:8001"]
    # The name server does not answer: each caller waits for WAIT_S, and one look-up is under way.
    monkeypatch.setattr(module, "WAIT_S", 0.05)
    names.answers.clear()
    asked = names.asked
    assert [gateway_urls() for _ in range(3)] == [["http://10.0.0.1:8001"]] * 3
    assert names.asked == asked + 1


def test_a_look_up_in_vain_is_not_repeated_for_each_question(
    names: NameServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "KEPT_S", 3600.0)
    assert [gateway_urls() for _ in range(5)] == [["http://gateway:8001"]] * 5
    assert names.asked == 1
    assert caplog.text.count("fleet.gateways_not_looked_up") == 1


def test_one_caller_waits_for_a_name_server_that_hangs(
    names: NameServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "WAIT_S", 0.05)
    monkeypatch.setattr(module, "KEPT_S", 3600.0)
    names.answers.clear()
    names.addresses = v4("10.0.0.1")
    assert gateway_urls() == ["http://gateway:8001"]
    # A question that waited would fail here.
    monkeypatch.setattr(module, "WAIT_S", None)
    assert [gateway_urls() for _ in range(5)] == [["http://gateway:8001"]] * 5
    assert caplog.text.count("fleet.gateways_not_looked_up") == 1
    # A late answer of the name server counts.
    names.answers.set()
    wait_until(lambda: gateway_urls() == ["http://10.0.0.1:8001"])


def test_a_name_without_an_address_is_asked_as_it_is(names: NameServer) -> None:
    """The error of the caller then contains the name."""
    assert gateway_urls() == ["http://gateway:8001"]


def test_listed_gateways_stay_beside_looked_up_ones(names: NameServer, settings: Any) -> None:
    names.addresses = v4("10.0.0.1")
    settings.GATEWAY_URLS = ["https://one.example.com", NAME, "http://10.0.0.1:8001"]
    assert gateway_urls() == ["https://one.example.com", "http://10.0.0.1:8001"]


@pytest.mark.parametrize(
    "wrong",
    [
        "dns+https://gateway",
        "dns://gateway",
        "http://gateway/path",
        "dns+gateway",
        "dns+http://a..b",
        "http://.gateway:8001",
        f"http://{'a' * 64}.example",
    ],
)
def test_another_form_is_refused_with_what_to_write(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEBOARD_GATEWAY_URL", wrong)
    with pytest.raises(ImproperlyConfigured, match=r"dns\+http://gateway:8001"):
        env.gateways("FUSEBOARD_GATEWAY_URL")


@pytest.mark.parametrize(
    "right", ["http://gateway.svc.cluster.local.:8001", "http://10.0.0.1", "http://[fd00::1]:8001"]
)
def test_names_and_addresses_are_accepted(right: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEBOARD_GATEWAY_URL", right)
    assert env.gateways("FUSEBOARD_GATEWAY_URL") == [right]
