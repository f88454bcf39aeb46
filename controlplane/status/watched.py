"""Figures that alert rules need and that change slowly, as plain data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class VendorAnswers:
    """What a dependency answered in the last minutes."""

    minutes: int
    #: All that ended, however they ended.
    calls: int
    #: 429, and codes of vendors that mean it.
    too_many: int = 0
    #: 401, 402 and 403, and codes that mean them: a person must act.
    refused_account: int = 0


@dataclass(frozen=True, kw_only=True)
class Spent:
    """What is spent of a quota, or of a vendor limit, with a calendar period."""

    #: Empty for a limit of a dependency on all tenants together.
    tenant: str
    dependency: str
    name: str
    spent: int
    limit: int
    measure: str
    #: It only counts.
    shadow: bool
    #: When the period ends, in unix seconds.
    ends: float

    @property
    def share(self) -> float:
        return self.spent / self.limit if self.limit else 1.0

    @property
    def key(self) -> str:
        return "/".join(part for part in (self.tenant, self.dependency, self.name) if part)


@dataclass(frozen=True, kw_only=True)
class Expiry:
    """The token, or the certificate, that expires next."""

    kind: Literal["agent token", "API token", "certificate"]
    #: Of the token; of the file, without its folder.
    name: str
    at: float


@dataclass(frozen=True, kw_only=True)
class Watched:
    #: Tenant -> requests per second in a usual hour, of the busiest tenants of now.
    usual_per_s: Mapping[str, float] = field(default_factory=dict)
    vendors: Mapping[str, VendorAnswers] = field(default_factory=dict)
    #: The most spent first.
    spent: tuple[Spent, ...] = ()
    expiring: tuple[Expiry, ...] = ()
