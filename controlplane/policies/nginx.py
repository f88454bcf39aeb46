"""Exports the request limits as a file for nginx, for a gateway in front that enforces them alone.

nginx counts on its own, in leaky buckets with fixed rates. So limits become classes, and a header maps each
tenant to one. Limits that nginx cannot count are left out and listed at the top of the file.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from controlplane.policies.document import environment_of, tuning_of
from controlplane.policies.fields import Fields, limits_in
from controlplane.policies.state import State, read_state
from fuseboard.contract.limits import EVERY_SERVICE
from fuseboard.contract.words import Algorithm, Dimension

MAX_GATEWAYS = 1_000
#: Zones for the tenants' own limits. Each costs memory and one lookup per request.
MAX_OWN = 100
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*", re.ASCII)
_SPECIAL = frozenset({"default", "hostnames", "include", "volatile"})
#: No tier can have these names, because names of tiers have no spaces.
_SUSPENDED, _REFUSED, _NOBODY = "a suspended tenant", "a limit of 0", "no tenant"
_COUNTED = (Algorithm.TOKEN_BUCKET, Algorithm.SLIDING_WINDOW)


@dataclass(frozen=True, order=True)
class Bucket:
    per_minute: int
    #: Calls beyond the first one.
    burst: int

    @property
    def rate(self) -> str:
        seconds, rest = divmod(self.per_minute, 60)
        return f"{self.per_minute}r/m" if rest else f"{seconds}r/s"


#: ``None`` refuses every call.
Buckets = frozenset[Bucket] | None


@dataclass
class _Classes:
    gateways: int
    #: Name -> its buckets.
    buckets: dict[str, Buckets] = field(default_factory=dict)
    #: Tenant -> class, for tenants whose class differs from the default tier's.
    tenants: dict[str, str] = field(default_factory=dict)
    left_out: set[str] = field(default_factory=set)
    #: Limits of all callers: service (``*`` for every service), name and bucket.
    of_all_callers: list[tuple[str, str, Bucket]] = field(default_factory=list)


def export_nginx(environment: str, *, header: str = "X-Tenant", gateways: int = 1) -> Iterator[str]:
    """Yield the file for each of ``gateways``, part by part. Raises ``NotFound`` at once."""
    revision = environment_of(environment).revision
    state = read_state(environment)
    return _file(environment, revision, _classes(environment, state, gateways), state, header)


def _classes(environment: str, state: State, gateways: int) -> _Classes:
    found = _Classes(gateways)
    own = state["environment", environment]
    tiers = {name: limits_in("quotas", fields) for (kind, name), fields in state.items() if kind == "tier"}
    for name, quotas in sorted(tiers.items()):
        found.buckets[name] = _buckets(found, f"tier {name}", quotas)
    nobody = {
        name: of for name, of in limits_in("subject_limits", own).items() if of.get("per") == [Dimension.IP]
    }
    found.buckets[_NOBODY] = _buckets(
        found, "without tenant", {name: {**of, "per": []} for name, of in nobody.items()}
    )
    _add_all_callers(found, limits_in("subject_limits", own))
    wanted: dict[str, tuple[str, Buckets]] = {}
    for (kind, key), fields in state.items():
        if kind != "tenant":
            continue
        tier = fields["tier"]
        quotas = limits_in("quotas", fields)
        if fields["suspended"]:
            found.tenants[key] = _SUSPENDED
        elif quotas:
            wanted[key] = (tier, _buckets(found, "tenants", tiers[tier] | quotas))
        elif tier != own["default_tier"]:
            found.tenants[key] = tier
    _add_own(found, wanted, own["default_tier"])
    return found


def _add_all_callers(found: _Classes, limits: dict[str, Fields]) -> None:
    for name, columns in sorted(limits.items()):
        if not columns.get("service"):
            continue
        refuses_all = columns["limit"] == 0
        if why := _uncounted(columns) or ("refuses every request: close the server" if refuses_all else ""):
            found.left_out.add(f"all callers, {name}: {why}")
        else:
            found.of_all_callers.append((columns["service"], name, _bucket(columns, found.gateways)))


def _add_own(found: _Classes, wanted: dict[str, tuple[str, Buckets]], default: str) -> None:
    """Add classes of tenants with equal limits. If there are too many, the largest come first."""
    names = {buckets: name for name, buckets in reversed(found.buckets.items()) if name != _NOBODY}
    counts = Counter(buckets for _, buckets in wanted.values() if buckets not in names)
    zones = {bucket for buckets in names for bucket in buckets or ()}
    budget = len(zones) + MAX_OWN
    number = 0
    for buckets, _ in counts.most_common():
        if len(zones | (buckets or frozenset())) <= budget:
            number += 1
            zones |= buckets or frozenset()
            names[buckets] = _REFUSED if buckets is None else f"own {number}"
            found.buckets[names[buckets]] = buckets
    for key, (tier, buckets) in wanted.items():
        if buckets not in names:
            found.left_out.add(
                f"more than {MAX_OWN} different own limits of tenants: the rest has the limits of the tier"
            )
        name = names.get(buckets, tier)
        if name != default:
            found.tenants[key] = name


def _buckets(classes: _Classes, whose: str, quotas: dict[str, Fields]) -> Buckets:
    found = set()
    for name, columns in quotas.items():
        why = _uncounted(columns)
        if why:
            classes.left_out.add(f"{whose}, {name}: {why}")
        elif columns["limit"] == 0:
            return None
        else:
            found.add(_bucket(columns, classes.gateways))
    return frozenset(found)


def _uncounted(columns: Fields) -> str:
    """Return why nginx cannot enforce the limit; empty if it can."""
    if columns["shadow"]:
        return "refuses nothing yet"
    if columns["algorithm"] not in _COUNTED:
        return f"nginx has no {columns['algorithm']}"
    if columns.get("dependency"):
        return f"counts calls to {columns['dependency']}"
    if columns.get("measure", "calls") != "calls":
        return f"counts {columns['measure']}"
    if columns.get("per") or columns.get("endpoints"):
        return "counts only some requests"
    return ""


def _bucket(columns: Fields, gateways: int) -> Bucket:
    window = columns["algorithm"] == Algorithm.SLIDING_WINDOW
    at_once = columns["limit"] if window else columns["burst"]
    return Bucket(
        per_minute=max(1, columns["limit"] * 60 // (columns["window_s"] * gateways)),
        burst=max(1, at_once // gateways) - 1,
    )


def _file(environment: str, revision: int, classes: _Classes, state: State, header: str) -> Iterator[str]:
    tenant = f"$http_{header.lower().replace('-', '_')}"
    gateways = f", for each of {classes.gateways} gateways" if classes.gateways > 1 else ""
    yield f"# Fuseboard, environment {environment}, revision {revision}{gateways}. Include it in http {{}}.\n"
    yield f"# A client that can set {header} chooses its limits: set it from verified data.\n"
    yield "# In server {} also:\n"
    yield "#   if ($fuseboard_refused = 403) { return 403; }\n"
    yield "#   if ($fuseboard_refused = 429) { return 429; }\n"
    for line in sorted(classes.left_out):
        yield f"# Left out: {line}.\n"
    yield "\nlimit_req_status 429;\n"
    longest = max(map(len, classes.tenants), default=0)
    if len(classes.tenants) > 1_000 or longest > 40:
        yield f"map_hash_max_size {2 * len(classes.tenants) + 2048};\nmap_hash_bucket_size 256;\n"
    default = state["environment", environment]["default_tier"]
    yield f'\nmap {tenant} $fuseboard_class {{\n    default "{default}";\n    "" "{_NOBODY}";\n'
    yield from _tenants(classes.tenants)
    yield "}\n\nmap $fuseboard_class $fuseboard_refused {\n    default 0;\n"
    yield f'    "{_SUSPENDED}" 403;\n'
    for name, buckets in classes.buckets.items():
        if buckets is None:
            yield f'    "{name}" 429;\n'
    yield "}\n"
    if classes.buckets.get(_NOBODY):
        yield from _addresses(tuning_of(environment_of(environment)).ipv6_prefix)
    yield from _zones(classes, tenant)
    yield from _zones_of_all_callers(classes.of_all_callers)


def _addresses(ipv6_prefix: int) -> Iterator[str]:
    """Yield the map from an address, in bytes, to its counter, as ``contract.addresses.counted_address``.

    nginx can cut bytes, not bits: a prefix that ends inside a byte counts by the shorter one.
    """
    whole = ipv6_prefix // 8
    yield "\nmap $binary_remote_addr $fuseboard_address {\n    default $binary_remote_addr;\n"
    compatible = r"\x00{12}(?!\x00{3}[\x00\x01])"
    mapped, translated = r"\x00{10}\xff\xff", (r"\x00{8}\xff\xff\x00\x00", r"\x00\x64\xff\x9b\x00{8}")
    for ipv4_inside in (compatible, mapped, *translated):
        yield f'    "~(?s)^{ipv4_inside}(.{{4}})$" $1;\n'
    for alone in (r"\xfe[\x80-\xbf].{14}", r"\x00{15}\x01"):
        yield f'    "~(?s)^({alone})$" $1;\n'
    yield f'    "~(?s)^(.{{{whole}}}).{{{16 - whole}}}$" $1;\n}}\n'


def _tenants(tenants: dict[str, str]) -> Iterator[str]:
    """Yield one line per tenant. nginx ignores case, so ids that differ only in case become patterns."""
    alike = Counter(key.lower() for key in tenants)
    for key in sorted(tenants):
        plain = _PLAIN.fullmatch(key) and key.lower() not in _SPECIAL and alike[key.lower()] == 1
        yield f'    "{key if plain else _pattern(key)}" "{tenants[key]}";\n'


def _pattern(key: str) -> str:
    """Return a pattern in which every byte with a meaning in patterns or in the file is a number."""
    safe = (chr(byte) if chr(byte).isalnum() and byte < 128 else f"\\x{byte:02x}" for byte in key.encode())
    return f"~^{''.join(safe)}$"


def _zones(classes: _Classes, tenant: str) -> Iterator[str]:
    used = sorted({bucket for buckets in classes.buckets.values() for bucket in buckets or ()})
    for number, bucket in enumerate(used, 1):
        names = [name for name, buckets in classes.buckets.items() if buckets and bucket in buckets]
        yield f'\nmap $fuseboard_class $fuseboard_key_{number} {{\n    default "";\n'
        yield from _keys(names, tenant)
        size = "1m" if all(name.startswith("own ") for name in names) else "10m"
        zone = f"zone=fuseboard_{number}"
        yield f"}}\nlimit_req_zone $fuseboard_key_{number} {zone}:{size} rate={bucket.rate};\n"
        burst = f" burst={bucket.burst} nodelay" if bucket.burst else ""
        yield f"limit_req {zone}{burst};\n"


def _zones_of_all_callers(limits: list[tuple[str, str, Bucket]]) -> Iterator[str]:
    """Yield one zone per limit, with one key. nginx cannot know which location is a service."""
    for number, (service, name, bucket) in enumerate(limits, 1):
        zone = f"zone=fuseboard_all_{number}"
        burst = f" burst={bucket.burst} nodelay" if bucket.burst else ""
        yield f"\n# All callers, {name}.\nlimit_req_zone all {zone}:1m rate={bucket.rate};\n"
        if service == EVERY_SERVICE:
            yield f"limit_req {zone}{burst};\n"
        else:
            yield f"# In the location of service {service}, with the other limit_req lines:\n"
            yield f"#   limit_req {zone}{burst};\n"


def _keys(names: Iterable[str], tenant: str) -> Iterator[str]:
    for name in names:
        yield f'    "{name}" {"$fuseboard_address" if name == _NOBODY else tenant};\n'
