"""The addresses that a webhook may connect to. Everything that is not plainly public is refused.

``ipaddress`` alone does not suffice: on Python 3.11, ``is_global`` is true for NAT64, 6to4, and multicast
addresses, and ``is_private`` is false for shared address space (100.64.0.0/10). So the networks are written
out, after the special-purpose registries of IANA (RFC 6890).
"""

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from fuseboard.contract.portable import Portable

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_REFUSED_V4 = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8",
            "10.0.0.0/8",
            "100.64.0.0/10",
            "127.0.0.0/8",
            # The metadata server of a cloud, in public address space.
            "168.63.129.16/32",
            "169.254.0.0/16",
            "172.16.0.0/12",
            "192.0.0.0/24",
            "192.0.2.0/24",
            "192.31.196.0/24",
            "192.52.193.0/24",
            "192.88.99.0/24",
            "192.168.0.0/16",
            "192.175.48.0/24",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "224.0.0.0/4",
            "240.0.0.0/4",
        ),
    )
)
#: Only this part of IPv6 is given to hosts, with exceptions.
_PUBLIC_V6 = IPv6Network("2000::/3")
_REFUSED_V6 = tuple(
    map(IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20"))
)
#: Addresses that contain an IPv4 address in their last 32 bits, as hosts with IPv6 only reach IPv4.
_NAT64 = IPv6Network("64:ff9b::/96")


class AddressRefused(Portable, Exception):
    """A webhook must not connect there."""

    def __init__(self, host: str, address: str) -> None:
        super().__init__(
            f"{host} is at {address}, which is not a public address. If the receiver is yours, add its"
            " network to FUSEBOARD_WEBHOOK_NETWORKS."
        )


def is_public(address: str, allowed: Iterable[Network] = ()) -> bool:
    """Whether a webhook may connect to this address, or it is in a network that is allowed."""
    try:
        found = _unwrapped(ip_address(address.partition("%")[0]))
    except ValueError:
        return False
    if any(found in network for network in allowed if network.version == found.version):
        return True
    if isinstance(found, IPv4Address):
        return not any(found in network for network in _REFUSED_V4)
    return found in _PUBLIC_V6 and not any(found in network for network in _REFUSED_V6)


def _unwrapped(address: Address) -> Address:
    """The IPv4 address that the network would use in the end."""
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address
