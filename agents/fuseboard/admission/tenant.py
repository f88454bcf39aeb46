"""The domain of one tenant: the quotas its requests are decided by."""

from collections import OrderedDict
from time import monotonic

from fuseboard.admission.gate import Denial
from fuseboard.admission.limits import script_arguments
from fuseboard.admission.question import Question
from fuseboard.configuration.snapshot import TenantRules
from fuseboard.contract import keys
from fuseboard.store.connection import Word

#: Tenants whose domains are kept worked out; the longest unused goes first.
MAX_DOMAINS = 20_000


class TenantDomain:
    __slots__ = (
        "_arguments",
        "_keys",
        "denial",
        "gathering",
        "in_flight",
        "limits",
        "part",
        "rules",
        "tenant",
    )

    def __init__(self, environment: str, tenant: str, rules: TenantRules, part: float) -> None:
        self.tenant = tenant
        self.rules = rules
        self.part = part
        self.gathering: Question | None = None
        self.in_flight: Question | None = None
        self.denial: Denial | None = None
        self.limits = rules.quotas
        self._keys = tuple(
            keys.tenant_quota(environment, tenant, limit.name).encode() for limit in self.limits
        )
        self._arguments = tuple(number for limit in self.limits for number in script_arguments(limit, part))

    def script_keys(self) -> tuple[bytes, ...]:
        return self._keys

    def script_head(self, token: str) -> tuple[Word, ...]:
        return (0, len(self.limits), *self._arguments)

    def limit_count(self) -> int:
        return len(self.limits)

    def learned(self, verdict: int, generation: int, wait_us: int) -> None:
        """A tenant has no breaker: there is nothing to learn of the domain as a whole."""

    def came_late(self, generation: int, tokens: tuple[str, ...]) -> None:
        """A tenant has no permits."""

    def denied(self, cost: int) -> Denial | None:
        """A refusal that still holds."""
        denial = self.denial
        if denial is None:
            return None
        if denial.until <= monotonic():
            self.denial = None
            return None
        return denial if cost >= denial.cost else None


class TenantDomains:
    """Domains by tenant, made on first use and again when a rule or the ramp changed."""

    def __init__(self, environment: str) -> None:
        self._environment = environment
        self._domains: OrderedDict[str, TenantDomain] = OrderedDict()

    def get(self, tenant: str, rules: TenantRules, part: float) -> TenantDomain:
        domain = self._domains.get(tenant)
        if domain is not None and domain.rules is rules and domain.part == part:
            self._domains.move_to_end(tenant)
            return domain
        domain = self._domains[tenant] = TenantDomain(self._environment, tenant, rules, part)
        if len(self._domains) > MAX_DOMAINS:
            self._domains.popitem(last=False)
        return domain
