"""The options of requests and calls, each written once: every block, decorator and transport takes them."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypedDict, TypeVar, get_args

from fuseboard.subject import NO_SUBJECT, Subject

V = TypeVar("V")
F = TypeVar("F", bound=Callable[..., Any])

#: Exceptions that say nothing about a dependency.
Neutral: TypeAlias = tuple[type[Exception], ...]

#: A value, or a function that gets the decorated function's arguments and returns it.
Given: TypeAlias = V | Callable[..., V]


class RequestOptions(TypedDict, total=False):
    """The options of a request that enters a service."""

    #: Estimates of its other costs, by measure; ``settle`` corrects them.
    costs: Mapping[str, int] | None
    #: The caller, below the tenant.
    subject: Subject
    #: A request that would be refused waits if the refusal ends within these seconds. ``None`` is what the
    #: tenant's tier says.
    wait_s: float | None


class PatienceOptions(TypedDict, total=False):
    """The options that every way to make a call takes, also a transport or a task."""

    #: See the options of a request. ``None`` takes the value of the dependency.
    wait_s: float | None
    #: critical, standard or optional: matters if the dependency has a bulkhead. ``None`` is what it
    #: says.
    tier: str | None


class BlockOptions(PatienceOptions, total=False):
    """The options of a call that are alike for every call of a decorated function."""

    #: Also spend the tenant's quotas on requests: for work that no request started.
    spend_quota: bool
    #: Also spend those of the tenant's quotas on requests that count other costs than calls, such as tokens:
    #: for a call within a request, which has paid for itself.
    spend_costs: bool
    #: Within which time the call must have ended. Bounds every wait, and the permit's timeout, like
    #: ``fuseboard.deadline``.
    deadline_s: float | None


class CallOptions(BlockOptions, total=False):
    """The options of a call that leaves a service."""

    #: Its quotas on the dependency apply too.
    tenant: str
    cost: int
    #: See the options of a request.
    costs: Mapping[str, int] | None


class ClientOptions(PatienceOptions, total=False):
    """The options of a guarded client, for each request that it sends."""

    #: Its quotas on the dependency apply too. A function returns the tenant of the request that is about to
    #: be sent, in the task or thread that sends it; ``None`` for none.
    tenant: str | Callable[[], str | None]


class TransportOptions(ClientOptions, total=False):
    """The options of a transport or adapter, which can also send a request again."""

    #: Send a failed request again as the policy of the dependency allows.
    retry: bool
    #: Repeating a request does no harm, even if the first one has arrived. ``None`` is what its method says.
    idempotent: bool | None


#: The defaults of the options above that are not ``None``.
_DEFAULTS = {
    "cost": 1,
    "neutral": (),
    "retry": False,
    "spend_quota": False,
    "spend_costs": False,
    "subject": NO_SUBJECT,
    "tenant": "",
}


def list_options(**defaults: object) -> Callable[[F], F]:
    """Decorator: ``help()`` shows the options of a function one by one, not ``**options: Unpack[...]``.

    ``defaults`` has the defaults of options that are not in this module, unless they are ``None``.
    """
    known = _DEFAULTS | defaults

    def listed(function: F) -> F:
        signature = inspect.signature(function)
        *parameters, options = signature.parameters.values()
        (names,) = get_args(options.annotation)
        for name, kind in names.__annotations__.items():
            default = known.get(name)
            parameters.append(
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
            )
        function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return function

    return listed
