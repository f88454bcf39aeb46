"""Rules for the descriptors that Envoy sends. envoyproxy/ratelimit finds the same rule for a descriptor.

A descriptor is a list of entries, each a key and a value. The rules of a domain are a tree, with one level
for each entry. The rule with the key and the value of an entry is first. Then come the rules of this key
whose value contains a ``*``, in their order, and then the rule of the key alone. Only the rule of the last
entry decides.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from fuseboard.contract.endpoints import starred
from fuseboard.contract.keys import values_digest
from fuseboard.contract.limits import Count, Limit, PolicyError, check_limits
from fuseboard.contract.words import UNREADABLE, Algorithm, Slug, is_slug

#: Domains of one environment.
MAX_DOMAINS = 20
#: Bytes of all domains of an environment, encoded. Each pod gets them with each new policy.
MAX_ALL_BYTES = 256 * 1024
#: Rules of one domain, on all levels.
MAX_RULES = 1_000
#: Bytes of one domain, encoded.
MAX_BYTES = 64 * 1024
MAX_LEVELS = 8
#: Characters of a key, a value or a name.
MAX_TEXT = 500

_unreadable = re.compile(f"[{UNREADABLE}]")
_PART = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
#: The name of a domain. Envoy Gateway has ``namespace/gateway/listener``. No part is ``.`` or ``..``, so the
#: name can be the end of the path of a URL.
DOMAIN_PATTERN = rf"^{_PART}(?:/{_PART})*$"
#: Characters of the name of a domain.
MAX_DOMAIN_NAME = 200
DOMAIN_RULE = (
    f"Use 1 to {MAX_DOMAIN_NAME} letters, digits, dots, dashes or underscores, with slashes between them."
    " Begin and end with a letter or digit, also beside a slash."
)
_domain = re.compile(DOMAIN_PATTERN)
_ADVICE = "With `means: tenant`, one rule serves every tenant."

#: Any characters, in the value of a rule.
WILDCARD = "*"

_Text = Annotated[str, Meta(max_length=MAX_TEXT)]
#: Key and value.
Entry: TypeAlias = tuple[str, str]
#: The place of a rule: its number on each level, from the top. The place of a domain is empty.
Place: TypeAlias = tuple[int, ...]


class Means(StrEnum):
    """The thing that the value of an entry names."""

    TENANT = "tenant"
    USER = "user"
    IP = "ip"
    API_KEY = "api_key"
    ENDPOINT = "endpoint"


class Charge(StrEnum):
    """When hits are charged."""

    #: The hits are charged if they are allowed.
    BEFORE = "before"
    #: The work is done: the hits are charged, and never refused. Only a check, with 0 hits, is refused.
    AFTER = "after"


class Headers(StrEnum):
    """The headers with what is left that answers have."""

    OFF = "off"
    #: ``RateLimit`` and ``RateLimit-Policy``, as the middlewares write them.
    ON = "on"
    #: ``RateLimit-Limit``, ``-Remaining`` and ``-Reset``, as envoyproxy/ratelimit writes them.
    LEGACY = "legacy"


class DescriptorRule(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A rule for one entry.

    It decides by ``limit``, ``unlimited``, ``means`` or ``dependency``. Without them, rules below it decide.
    """

    key: Annotated[str, Meta(min_length=1, max_length=MAX_TEXT)]
    #: Empty for every value. A ``*`` in it stands for any characters.
    value: _Text = ""
    #: A limit of its own. Each value of the entries has a separate counter.
    limit: Limit | None = None
    unlimited: bool = False
    #: The name by which other rules replace this one.
    name: _Text = ""
    #: The names of rules that do not count if this rule decides in the same request.
    replaces: tuple[_Text, ...] = ()
    #: All values that match ``value`` share one counter.
    share: bool = False
    #: The quotas of the tenant, or the limits of the caller, decide.
    means: Means | None = None
    #: The limits and the breaker of this dependency decide.
    dependency: Annotated[str, Meta(max_length=64)] = ""
    #: The measure that hits are charged to.
    measure: Slug = "calls"
    charge: Charge = Charge.BEFORE
    #: The most that a request may state instead of ``limit.limit``; 0 if it may state none.
    accepts_override: Count = 0
    #: The rules for the next entry.
    then: tuple["DescriptorRule", ...] = ()

    @property
    def decides(self) -> bool:
        return self.limit is not None or self.unlimited or self.means is not None or bool(self.dependency)


def with_requests(limit: Limit, requests: int) -> Limit:
    """The limit of a rule, with another number of requests in the same unit."""
    burst = max(1, requests) if limit.algorithm is Algorithm.TOKEN_BUCKET else limit.burst
    return replace(limit, limit=requests, burst=burst)


class DescriptorDomain(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The rules for one domain, a word that a filter of Envoy sends with each request."""

    domain: Annotated[str, Meta(min_length=1, max_length=MAX_TEXT)]
    rules: tuple[DescriptorRule, ...] = ()
    headers: Headers = Headers.OFF


class Verdict(StrEnum):
    """How a descriptor is decided."""

    #: No rule decides: it is allowed, and not counted.
    UNMATCHED = "unmatched"
    UNLIMITED = "unlimited"
    #: Another descriptor of the request replaces the rule: it is allowed, and not counted.
    REPLACED = "replaced"
    #: The limit of the rule decides.
    LIMIT = "limit"
    #: The quotas of a tenant, or the limits of a caller, decide.
    REQUEST = "request"
    #: The limits and the breaker of a dependency decide.
    CALL = "call"


@dataclass(frozen=True, kw_only=True)
class Match:
    """The rule that a descriptor meets."""

    verdict: Verdict
    #: The rules of all entries; the last one decides. Empty for ``UNMATCHED``.
    path: tuple[DescriptorRule, ...] = ()
    #: The words of the entries that name a tenant or a caller.
    named: dict[Means, str] = field(default_factory=dict)
    #: ``LIMIT`` only: keys and values. Descriptors of a domain with the same ones share a counter.
    counted: tuple[str, ...] = ()

    @property
    def rule(self) -> DescriptorRule | None:
        return self.path[-1] if self.path else None


UNMATCHED = Match(verdict=Verdict.UNMATCHED)


class DescriptorRules:
    """The rules of all domains, prepared for many requests."""

    def __init__(self, domains: Iterable[DescriptorDomain]) -> None:
        domains = tuple(domains)
        self._domains = {domain.domain: _Level(domain.rules) for domain in domains}
        self._headers = {domain.domain: domain.headers for domain in domains}

    def headers(self, domain: str) -> Headers:
        return self._headers.get(domain, Headers.OFF)

    def match(self, domain: str, descriptors: Sequence[Sequence[Entry]]) -> tuple[Match, ...]:
        """One match for each descriptor of a request. A domain without rules matches none."""
        level = self._domains.get(domain)
        found = [UNMATCHED if level is None else _match(level, descriptor) for descriptor in descriptors]
        replaced = {name for match in found if match.rule is not None for name in match.rule.replaces}
        return tuple(_replace(match) if _is_named(match, replaced) else match for match in found)


class _Level:
    """Rules of one level."""

    def __init__(self, rules: Iterable[DescriptorRule]) -> None:
        self._exact: dict[Entry, _Node] = {}
        self._alone: dict[str, _Node] = {}
        self._wild: dict[str, list[tuple[re.Pattern[str], _Node]]] = {}
        for rule in rules:
            node = _Node(rule)
            if not rule.value:
                self._alone[rule.key] = node
                continue
            self._exact[rule.key, rule.value] = node
            if WILDCARD in rule.value:
                pattern = re.compile(starred(rule.value))
                self._wild.setdefault(rule.key, []).append((pattern, node))

    def find(self, entry: Entry) -> "_Node | None":
        key, value = entry
        node = self._exact.get(entry)
        if node is None:
            wild = self._wild.get(key, ())
            node = next((node for pattern, node in wild if pattern.match(value)), None)
        return node or self._alone.get(key)


class _Node:
    def __init__(self, rule: DescriptorRule) -> None:
        self.rule = rule
        self.below = _Level(rule.then)


def _match(level: _Level, descriptor: Sequence[Entry]) -> Match:
    path: list[DescriptorRule] = []
    for entry in descriptor:
        node = level.find(entry)
        if node is None:
            return UNMATCHED
        path.append(node.rule)
        level = node.below
    if not path or not path[-1].decides:
        return UNMATCHED
    named = {
        rule.means: value for rule, (_, value) in zip(path, descriptor, strict=True) if rule.means is not None
    }
    return _decided(tuple(path), named, descriptor)


def _decided(path: tuple[DescriptorRule, ...], named: dict[Means, str], descriptor: Sequence[Entry]) -> Match:
    rule = path[-1]
    if rule.unlimited:
        return Match(verdict=Verdict.UNLIMITED, path=path)
    if rule.limit is None:
        verdict = Verdict.CALL if rule.dependency else Verdict.REQUEST
        return Match(verdict=verdict, path=path, named=named)
    counted = tuple(
        word
        for rule, (key, value) in zip(path, descriptor, strict=True)
        for word in (key, rule.value if rule.share else value)
    )
    return Match(verdict=Verdict.LIMIT, path=path, counted=counted)


def _is_named(match: Match, names: set[str]) -> bool:
    rule = match.rule
    return rule is not None and match.verdict is not Verdict.UNLIMITED and rule.name in names


def _replace(match: Match) -> Match:
    return Match(verdict=Verdict.REPLACED, path=match.path)


def is_domain(text: str) -> bool:
    """Whether ``text`` may name a domain."""
    return len(text) <= MAX_DOMAIN_NAME and _domain.fullmatch(text) is not None


def counted_key(domain: str, match: Match) -> str:
    """The key that the ``limit`` of a rule counts: one for each domain and ``counted``."""
    return values_digest((domain, *match.counted))


def problems_of(domain: DescriptorDomain) -> Iterator[tuple[Place, str]]:
    """Yield contradictions, each with the place of its rule."""
    if not domain.domain:
        yield (), "Enter the name of the domain."
    if _unreadable.search(domain.domain):
        yield (), "The name of the domain cannot contain control characters."
    count, size = _count(domain.rules), len(msgspec.json.encode(domain))
    if count > MAX_RULES:
        yield (), f"The domain has {count:,} rules. {MAX_RULES:,} are allowed. {_ADVICE}"
    elif size > MAX_BYTES:
        yield (), f"The domain has {size:,} bytes. {MAX_BYTES:,} are allowed. {_ADVICE}"
    yield from _problems_of_level((), domain.rules)


def problems_of_all(domains: Collection[DescriptorDomain]) -> Iterator[tuple[str, str]]:
    """Yield contradictions of the domains of an environment, each with where it is: ``.edge rule 2.1``."""
    for domain in domains:
        for place, problem in problems_of(domain):
            rule = ".".join(str(number + 1) for number in place)
            yield f".{domain.domain}" + (f" rule {rule}" if rule else ""), problem
    size = len(msgspec.json.encode(domains))
    if size > MAX_ALL_BYTES:
        yield "", f"All domains have {size:,} bytes. {MAX_ALL_BYTES:,} are allowed. {_ADVICE}"


def _count(rules: tuple[DescriptorRule, ...]) -> int:
    return sum(1 + _count(rule.then) for rule in rules)


def _problems_of_level(place: Place, rules: tuple[DescriptorRule, ...]) -> Iterator[tuple[Place, str]]:
    if rules and len(place) >= MAX_LEVELS:
        yield place, f"The rules have more than {MAX_LEVELS} levels."
        return
    seen: set[Entry] = set()
    for number, rule in enumerate(rules):
        here = (*place, number)
        if (rule.key, rule.value) in seen:
            yield here, f"A rule for {rule_text(rule)!r} appears twice."
        seen.add((rule.key, rule.value))
        yield from ((here, problem) for problem in _problems_of_rule(rule))
        yield from _problems_of_level(here, rule.then)


def _problems_of_rule(rule: DescriptorRule) -> Iterator[str]:
    if not rule.key:
        yield "Enter the key."
    if any(map(_unreadable.search, (rule.key, rule.value, rule.name, *rule.replaces))):
        yield "Keys, values and names cannot contain control characters."
    if WILDCARD in rule.key:
        yield "A key cannot contain *: write the pattern as the value."
    if rule.share and WILDCARD not in rule.value:
        yield "share_threshold needs a value with *."
    if "" in rule.replaces:
        yield "Enter the name of each rule that is replaced."
    if rule.name and rule.name in rule.replaces:
        yield "A rule cannot replace itself."
    if (rule.limit is not None) + rule.unlimited + (rule.means is not None) + bool(rule.dependency) > 1:
        yield "A rule has one of rate_limit, means and dependency."
    if rule.dependency and not is_slug(rule.dependency):
        yield f"{rule.dependency!r} cannot be the name of a dependency."
    if not is_slug(rule.measure):
        yield f"{rule.measure!r} cannot be the name of a measure."
    if (rule.measure != "calls" or rule.charge is not Charge.BEFORE) and (rule.unlimited or not rule.decides):
        yield "measure and charge need a rate_limit, means or dependency."
    if rule.dependency and rule.charge is Charge.AFTER and rule.measure == "calls":
        yield "A dependency counts calls as they begin: with charge: after, name another measure."
    if rule.accepts_override and rule.limit is None:
        yield "accepts_override needs a rate_limit with a unit."
    if rule.limit is not None:
        try:
            check_limits("rate_limit", (rule.limit,))
            check_limits("accepts_override", (with_requests(rule.limit, rule.accepts_override),))
        except PolicyError as error:
            yield str(error)


def rule_text(rule: DescriptorRule) -> str:
    """``key=value``, or ``key`` for the rule of every value."""
    return f"{rule.key}={rule.value}" if rule.value else rule.key
