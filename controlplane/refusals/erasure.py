"""Deletes the samples of one caller: an address, a login, an API key, or a tenant.

A sample has digests of its caller, so a caller is found by the digests that the keys of the last days give
for it. Without its key, a digest belongs to no caller.
"""

import re
from ipaddress import IPv6Network

from django.db.models import Q

from controlplane.refusals.models import DigestKey, RefusalSample
from fuseboard.contract.addresses import (
    HOLD_IPV4,
    NARROWEST_PREFIX,
    WIDEST_PREFIX,
    address_of,
    counted_address,
)
from fuseboard.contract.refusal_samples import digest_of


def erase_caller(environment: str, subject: str, value: str) -> int:
    """Delete the samples of an ``ip``, a ``user`` or an ``api_key``; returns their number.

    Pods report the network of an IPv6 address, so the samples of its other addresses are deleted too.
    """
    keys = DigestKey.objects.filter(environment=environment).values_list("key", flat=True)
    texts = spellings(subject, value)
    if subject == "ip":
        texts |= {counted_address(value, prefix) for prefix in range(WIDEST_PREFIX, NARROWEST_PREFIX + 1)}
    digests = {digest_of(bytes(key), subject, text) for key in keys for text in texts}
    rows = RefusalSample.objects.filter(environment=environment, **{f"{subject}__in": digests})
    return rows.delete()[0]


def erase_tenant(environment: str, tenant: str) -> int:
    """Delete the samples of a tenant, and those that name it as the owner of an inherited quota."""
    inherited = Q(rule__regex=f"^{re.escape(tenant)}/[^/]+$")
    rows = RefusalSample.objects.filter(Q(tenant=tenant) | inherited, environment=environment)
    return rows.delete()[0]


def is_named(subject: str, value: str, text: str) -> bool:
    """Whether a text contains this caller, in any of its spellings."""
    return any(
        re.search(rf"(?<!\w){re.escape(one)}(?!\w)", text, re.IGNORECASE) for one in spellings(subject, value)
    )


def spellings(subject: str, value: str) -> set[str]:
    """How services write this caller. Pods up to release 0.1 report an address as the service writes it."""
    plain = address_of(value) if subject == "ip" else None
    if plain is None:
        return {value}
    if plain.version == 6:
        found = {value, str(plain), plain.exploded, _without_zeros(plain.exploded)}
    else:
        high, low = divmod(int(plain), 2**16)
        ends = (str(plain), f"{high:x}:{low:x}", f"{high:04x}:{low:04x}")
        heads = [head for network in HOLD_IPV4 for head in _heads(network)]
        found = {value, str(plain), *(head + end for head in heads for end in ends)}
    return found | {one.upper() for one in found}


def _heads(network: IPv6Network) -> set[str]:
    """How a text of an address of this network begins, before the IPv4 address."""
    full = network.network_address.exploded[: -len("0000:0000")]
    plain = _without_zeros(full)
    return {full, plain, re.sub("(^|:)0(:0)+:", "::", plain, count=1)}


def _without_zeros(exploded: str) -> str:
    """Write no zeros in front of a group, and every group, as some runtimes do."""
    return re.sub(r"\b0{1,3}(?=[0-9a-f])", "", exploded)
