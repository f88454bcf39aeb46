"""The subject that a request is counted for, below its tenant."""

from collections.abc import Mapping
from dataclasses import dataclass

from fuseboard.contract.endpoints import counted_endpoint
from fuseboard.contract.policy import Limit
from fuseboard.contract.words import Dimension
from fuseboard.errors import Misconfigured

#: The costs of a call by measure, in order of name.
Costs = tuple[tuple[str, int], ...]

ONE_CALL: Costs = (("calls", 1),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The values that limits may count by. Pass what is known; a limit that needs more does not apply.

    ``endpoint`` is the method and the route template, like ``POST /v1/orders/{id}``. With the plain
    path, every id would be counted separately.
    """

    user: str = ""
    ip: str = ""
    api_key: str = ""
    endpoint: str = ""

    def value(self, dimension: Dimension) -> str:
        """The name of the counter of a limit that counts by this."""
        value = str(getattr(self, dimension.value))
        return counted_endpoint(value) if dimension is Dimension.ENDPOINT else value


NO_SUBJECT = Subject()


def costs_of(cost: int, more: Mapping[str, int] | None = None) -> Costs:
    """The costs of ``cost`` calls, and other costs. Raises ``Misconfigured`` unless they are whole
    numbers.

    An estimate may be 0 (nothing is known yet); the number of calls may not.
    """
    if type(cost) is not int or cost < 1:
        raise Misconfigured(f"cost must be a whole number of at least 1, not {cost!r}")
    if not more:
        return ONE_CALL if cost == 1 else (("calls", cost),)
    for measure, amount in more.items():
        if type(amount) is not int or amount < 0:
            raise Misconfigured(f"costs[{measure!r}] must be a whole number of at least 0, not {amount!r}")
    return tuple(sorted({"calls": cost, **more}.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One of several requests for ``Agent.admit_together``: the arguments of ``admit_request``."""

    tenant: str | None = None
    #: The number of calls; 0 with ``costs`` for what is no call, such as tokens of one that was counted.
    cost: int = 1
    #: Estimates of its other costs, by measure.
    costs: Mapping[str, int] | None = None
    #: The caller, below the tenant.
    subject: Subject = NO_SUBJECT
    #: A limit of the caller, a ``fuseboard.contract.policy.Limit``. It alone decides: it is in no
    #: configuration, so the ask has no tenant and no subject.
    limit: Limit | None = None
    #: Each key has its own counter of ``limit``, which all pods share: 1 to 1,000 characters.
    key: str = ""


def ask_costs(ask: Ask) -> Costs:
    """The costs of a request that may be no call. Raises ``Misconfigured`` as ``costs_of`` does."""
    if ask.cost == 0 and ask.costs:
        return tuple([pair for pair in costs_of(1, ask.costs) if pair[0] != "calls"])
    return costs_of(ask.cost, ask.costs)
