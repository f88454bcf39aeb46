"""No webhook connects to an address inside: the list of the design, and what surrounds each network."""

from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.alerts.delivery.addresses import _REFUSED_V4, is_public


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "0.0.0.0",  # noqa: S104 - nothing listens
        "10.1.2.3",
        "172.31.255.255",
        "192.168.0.1",
        "169.254.169.254",
        "100.64.0.1",
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.8",
        "198.18.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::127.0.0.1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::1",
        "2002:7f00:1::",
        "2001:0:7f00:1::",
        "2001:db8::1",
        "fe80::1",
        "fe80::1%eth0",
        "fec0::1",
        "fd00::1",
        "5f00::1",
        "ff02::1",
        "3fff::1",
        "",
        "localhost",
        "127.1",
        "0x7f.1",
        "2130706433",
    ],
)
def test_what_is_not_public_is_refused(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "93.184.216.34", "::ffff:93.184.216.34", "64:ff9b::5db8:d822", "2606:4700::1111"]
)
def test_public_addresses_are_allowed(address: str) -> None:
    assert is_public(address)


@given(st.integers(0, 2**32 - 1))
def test_an_ipv4_address_is_judged_alike_in_every_form(number: int) -> None:
    plain = ip_address(number)
    public = is_public(str(plain))
    assert is_public(f"::ffff:{plain}") is public
    assert is_public(f"64:ff9b::{plain}") is public
    assert not (public and (plain.is_private or plain.is_multicast or plain.is_loopback))
    assert public is not any(plain in network for network in _REFUSED_V4)


def test_an_operator_can_allow_networks() -> None:
    own = (ip_network("10.1.0.0/16"), ip_network("fd00:1::/64"))
    assert is_public("10.1.2.3", own)
    assert is_public("::ffff:10.1.2.3", own)
    assert is_public("fd00:1::5", own)
    assert not is_public("10.2.0.1", own)
