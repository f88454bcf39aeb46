"""An address as limits count it: its many texts are one address, and an IPv6 client is its network.

The customer of a provider has at least a /64 of IPv6, so a single address says nothing about who asks.
"""

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

IPV6_PREFIX = 64
NARROWEST_PREFIX, WIDEST_PREFIX = 128, 32

#: Longer texts are not addresses: eight groups, a zone, brackets and a port have less.
_LONGEST = 100
#: The last 32 bits are an IPv4 address: compatible and mapped ones (RFC 4291), and those that translators
#: write (RFC 2765, RFC 6052).
HOLD_IPV4 = tuple(map(IPv6Network, ("::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96")))

Address = IPv4Address | IPv6Address


@lru_cache(maxsize=16_384)
def counted_address(text: str, ipv6_prefix: int = IPV6_PREFIX) -> str:
    """The name of the counter of an address: ``192.0.2.7``, ``2001:db8:7:1::/64``. Other text stays as it is.

    Neighbours on one link share their /64, so an address of the link counts alone.
    """
    address = address_of(text)
    if address is None:
        return text
    if address.version == 4 or ipv6_prefix == 128 or address.is_link_local or address.is_loopback:
        return str(address)
    return str(network_of(address, ipv6_prefix))


def network_of(address: IPv6Address, ipv6_prefix: int) -> IPv6Network:
    return IPv6Network((int(address), ipv6_prefix), strict=False)


def address_of(text: str) -> Address | None:
    """Parse the text of an address, with or without brackets, a port, a zone, and zeros in front.

    An IPv4 address inside an IPv6 address is the IPv4 address. ``None`` for any other text.
    """
    if len(text) > _LONGEST:
        return None
    host = _host_of(text.strip().strip('"'))
    try:
        address = ip_address(_without_zeros(host) if ":" not in host else host)
    except ValueError:
        return None
    if isinstance(address, IPv6Address):
        return _ipv4_in(address) or IPv6Address(int(address))  # without the zone
    return address


def _host_of(text: str) -> str:
    """``[::1]:443`` -> ``::1``; ``192.0.2.7:80`` -> ``192.0.2.7``."""
    if text.startswith("["):
        host, closed, port = text[1:].partition("]")
        return host if closed and (not port or _is_port(port)) else text
    host, colon, port = text.partition(":")
    return host if colon and "." in host and _is_port(colon + port) else text


def _is_port(text: str) -> bool:
    return text == ":" or (text[0] == ":" and text[1:].isascii() and text[1:].isdigit())


def _without_zeros(host: str) -> str:
    """Zeros in front of a decimal number, as some logs and proxies write it: ``192.000.002.007``."""
    return ".".join(part.lstrip("0") or part[:1] for part in host.split("."))


def _ipv4_in(address: IPv6Address) -> IPv4Address | None:
    if address.is_unspecified or address.is_loopback or not any(address in network for network in HOLD_IPV4):
        return None
    return IPv4Address(int(address) & 0xFFFF_FFFF)
