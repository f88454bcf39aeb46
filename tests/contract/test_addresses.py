"""An address has one counter, whichever way a server writes it."""

import pytest

from fuseboard.contract.addresses import counted_address

TEXTS = {
    "192.0.2.7": (
        "192.0.2.7",
        " 192.0.2.7\n",
        "192.000.002.007",
        "192.0.2.7:5678",
        "192.0.2.7:",
        "[192.0.2.7]:80",
        '"192.0.2.7:80"',
        "::ffff:192.0.2.7",
        "::FFFF:C000:207",
        "0:0:0:0:0:ffff:192.0.2.7",
        "[::ffff:192.0.2.7]:443",
        "::ffff:192.0.2.7%eth0",
        "64:ff9b::192.0.2.7",
        "::192.0.2.7",
        "::ffff:0:192.0.2.7",
    ),
    "2001:db8:7:1::/64": (
        "2001:db8:7:1::1",
        "2001:DB8:7:1::2",
        "2001:0db8:0007:0001:0000:0000:0000:0003",
        "2001:db8:7:1:ffff:ffff:ffff:ffff",
        "[2001:db8:7:1::9]",
        "[2001:db8:7:1::9]:443",
        '"[2001:db8:7:1::9]:443"',
        "\t2001:db8:7:1::9 ",
        "2001:db8:7:1::9%eth0",
        "2001:db8:7:1::192.0.2.7",
    ),
    # Neighbours on a link share its /64, and so does every client of this host.
    "fe80::1": ("fe80::1", "FE80::0001%eth0", "[fe80::1%25eth0]:443"),
    "::/64": ("::", "0::0"),
    "::1": ("::1", "[::1]:443", "0:0:0:0:0:0:0:1"),
}
OTHERS = (
    *("shop.example", "unix:", "", "unknown", "192.0.2", "192.0.2.7.1", "192.0.2.7, 192.0.2.8", "256.1.1.1"),
    *(
        "0x7f.0.0.1",
        "192.0.2.7:http",
        "[::1",
        "::1]:5",
        "[]",
        "%",
        "...",
        ":",
        "2001:db8::/64",
        "\uff11.2.3.4",
    ),
    *("\udc80", "1" * 200, "::" * 100),
)


@pytest.mark.parametrize(
    ("counted", "text"), [(name, text) for name, texts in TEXTS.items() for text in texts]
)
def test_every_text_of_an_address_is_counted_as_one(counted: str, text: str) -> None:
    assert counted_address(text) == counted
    assert counted_address(counted_address(text)) == counted


@pytest.mark.parametrize("text", OTHERS)
def test_text_that_is_not_an_address_stays_as_it_is(text: str) -> None:
    assert counted_address(text) == text


def test_the_prefix_decides_how_large_a_network_one_client_is() -> None:
    one, other = "2001:db8:7:1a::1", "2001:db8:7:1b::1"
    assert counted_address(one, 56) == counted_address(other, 56) == "2001:db8:7::/56"
    assert counted_address(one, 64) != counted_address(other, 64)
    assert counted_address("2001:DB8:0::1", 128) == "2001:db8::1"
    assert counted_address("192.0.2.7", 32) == "192.0.2.7"
