"""No webhook connects to an address inside: the list of the design, and what surrounds each network."""

from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.alerts.delivery.addresses import _REFUSED_V4, is_public
from tests.controlplane.alerts.delivery.refused_addresses import REFUSED


@pytest.mark.parametrize("address", REFUSED)
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
