"""Deletes the samples of one caller: an address, a login, an API key, or a tenant.

A sample has digests of its caller, so a caller is found by the digests that the keys of the last days give
for it. Without its key, a digest belongs to no caller.
"""

import re
from ipaddress import IPv6Address

from django.db.models import Q

from controlplane.refusals.models import DigestKey, RefusalSample
from fuseboard.contract.addresses import NARROWEST_PREFIX, WIDEST_PREFIX, address_of, counted_address
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
    found = {value, str(plain), plain.exploded}
    if plain.version == 4:
        high, low = divmod(int(plain), 2**16)
        mapped = f"::ffff:{high:x}:{low:x}"
        found |= {f"::ffff:{plain}", mapped, IPv6Address(mapped).exploded, f"0:0:0:0:0:ffff:{high:x}:{low:x}"}
        found |= {f"0:0:0:0:0:ffff:{plain}", f"0000:0000:0000:0000:0000:ffff:{plain}"}
    else:
        # Without the short form of zeros, as some runtimes write it.
        found.add(":".join(f"{int(part, 16):x}" for part in plain.exploded.split(":")))
    return found | {one.upper() for one in found}
