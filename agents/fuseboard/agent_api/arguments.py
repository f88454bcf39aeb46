"""Checks of what callers pass: wrong use raises at once, and text from clients is made harmless."""

from collections.abc import Mapping, Set
from difflib import get_close_matches
from math import isfinite

from fuseboard.agent_api.options import CallOptions, ClientOptions, RequestOptions, TransportOptions
from fuseboard.contract.addresses import IPV6_PREFIX, counted_address
from fuseboard.contract.models import Price
from fuseboard.contract.words import CallTier, is_slug, is_subject
from fuseboard.decision import MAX_ACTUAL as MAX_ACTUAL
from fuseboard.decision import Amounts, is_amount
from fuseboard.errors import Misconfigured
from fuseboard.subject import NO_SUBJECT, Subject

#: Invalid ids (empty, too long, control characters) share one counter under this name: text from a client
#: must neither fail a request nor escape a limit.
INVALID = "(invalid)"

NAME_RULE = "1 to 64 letters, digits, '.', '_' or '-', beginning and ending with a letter or digit"

#: The longest wait that a caller may ask for.
MAX_WAIT_S = 3600.0

MAX_ENDPOINT = 2000

TIERS = tuple(tier.value for tier in CallTier)

REQUEST_NAMES, CALL_NAMES = frozenset(RequestOptions.__annotations__), frozenset(CallOptions.__annotations__)
#: The arguments of a block and its decorator, which judge errors.
BLOCK_NAMES = CALL_NAMES | {"neutral"}
CLIENT_NAMES = frozenset(ClientOptions.__annotations__)
TRANSPORT_NAMES = frozenset(TransportOptions.__annotations__)


def check_request_options(options: RequestOptions) -> None:
    """Raise ``TypeError`` for an unknown option, and ``Misconfigured`` for an invalid one."""
    check_names("admit_request", options.keys(), REQUEST_NAMES)
    check_wait(options.get("wait_s"))
    if (costs := options.get("costs")) is not None:
        check_costs(costs)


def check_call_options(options: CallOptions) -> None:
    """See ``check_request_options``."""
    check_names("admit_call", options.keys(), CALL_NAMES)
    check_call_values(options.get("costs"), options.get("wait_s"), options.get("tier"))
    check_deadline(options.get("deadline_s"))


def check_call_values(costs: Mapping[str, int] | None, wait_s: object, tier: object) -> None:
    """Raise ``Misconfigured`` for an invalid one."""
    if costs is not None:
        check_costs(costs)
    if wait_s is not None:
        check_wait(wait_s)
    if tier is not None:
        check_tier(tier)


def check_transport_options(function: str, options: TransportOptions) -> None:
    """See ``check_request_options``."""
    check_names(function, options.keys(), TRANSPORT_NAMES)
    check_wait(options.get("wait_s"))
    check_tier(options.get("tier"))


def check_client_options(function: str, options: ClientOptions) -> None:
    """See ``check_request_options``."""
    check_names(function, options.keys(), CLIENT_NAMES)
    check_wait(options.get("wait_s"))
    check_tier(options.get("tier"))


def check_names(function: str, given: Set[str], known: frozenset[str]) -> None:
    """Raise ``TypeError`` for an unknown option, as Python does for the parameters of a function."""
    if not given <= known:
        wrong = min(given - known)
        nearest = get_close_matches(wrong, known, 1)
        hint = f"Did you mean {nearest[0]!r}?" if nearest else f"It takes {', '.join(sorted(known))}"
        raise TypeError(f"{function}() got an unexpected keyword argument {wrong!r}. {hint}")


def check_name(kind: str, name: object) -> None:
    """Raise ``Misconfigured``, with the rule, for an invalid name of a dependency or a measure."""
    if not isinstance(name, str) or not is_slug(name):
        raise Misconfigured(f"the name of {kind} must be {NAME_RULE}, not {_shown(name)}")


def check_costs(costs: Mapping[str, int]) -> None:
    """Raise ``Misconfigured`` for invalid measures. Amounts are checked where they are used."""
    if not isinstance(costs, Mapping):
        raise Misconfigured(
            f"costs must map measures to amounts, like {{'tokens': 500}}, not {_shown(costs)}"
        )
    for measure in costs:
        check_name("a measure", measure)
    if "calls" in costs:
        raise Misconfigured("costs must not contain 'calls': use cost= for the number of calls")


def check_actual(measure: object, actual: object) -> None:
    check_name("a measure", measure)
    if not is_amount(actual):
        raise Misconfigured(
            f"the actual {measure} must be a whole number of at least 0, and at most {MAX_ACTUAL:,},"
            f" not {_shown(actual)}"
        )


def usage_of(
    used: Amounts | Mapping[str, int], price: Price | None = None, *, batch: bool = False
) -> dict[str, int]:
    """The amounts that were used, by measure. Raises ``Misconfigured`` for invalid amounts, and for calls.

    ``price`` is for tokens. A mapping names the money itself.
    """
    amounts = dict(used if isinstance(used, Mapping) else used.amounts(price, batch=batch))
    for measure, amount in amounts.items():
        check_actual(measure, amount)
    if "calls" in amounts:
        raise Misconfigured("a charge counts no calls: use admit_call for those")
    return amounts


def check_wait(wait_s: object) -> None:
    """Raise ``Misconfigured`` for an invalid wait. ``None`` is the one of the configuration."""
    if wait_s is not None and (
        isinstance(wait_s, bool)
        or not isinstance(wait_s, int | float)
        or not (isfinite(wait_s) and 0 <= wait_s <= MAX_WAIT_S)
    ):
        raise Misconfigured(f"wait_s must be 0 to {MAX_WAIT_S:g} seconds, not {_shown(wait_s)}")


def check_seconds(name: str, seconds: object, least: float, most: float) -> None:
    """Raise ``Misconfigured`` unless it is a number of seconds in this range."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not least <= seconds <= most:
        raise Misconfigured(f"{name} must be {least:,.10g} to {most:,.10g} seconds, not {_shown(seconds)}")


def check_tier(tier: object) -> None:
    """Raise ``Misconfigured`` unless it is a tier of calls. ``None`` is the one of the dependency."""
    if tier is not None and tier not in TIERS:
        raise Misconfigured(f"tier must be one of {', '.join(TIERS)}, not {_shown(tier)}")


def check_deadline(deadline_s: object) -> None:
    """Raise ``Misconfigured`` for an invalid deadline. ``None`` is none."""
    if deadline_s is not None and (
        isinstance(deadline_s, bool) or not isinstance(deadline_s, int | float) or not deadline_s > 0
    ):
        raise Misconfigured(f"deadline_s must be a number of seconds above 0, not {_shown(deadline_s)}")


def harmless(subject: Subject, ipv6_prefix: int = IPV6_PREFIX) -> Subject:
    """``subject`` with values that can be counted. All invalid values share one counter, and so do all texts
    of one address.
    """
    if subject is NO_SUBJECT:
        return NO_SUBJECT
    if not isinstance(subject, Subject):
        raise Misconfigured(f"subject must be a fuseboard.Subject, not {type(subject).__name__}")
    for value in (subject.user, subject.ip, subject.api_key, subject.endpoint):
        if not isinstance(value, str):
            raise Misconfigured(f"the values of a subject must be text, not {type(value).__name__}")
    return Subject(
        user=_id(subject.user),
        ip=_id(counted_address(subject.ip, ipv6_prefix)) if subject.ip else "",
        api_key=_id(subject.api_key),
        # Kept wherever possible: a shortened or replaced endpoint might match no pattern.
        endpoint=subject.endpoint[:MAX_ENDPOINT].encode(errors="replace").decode(),
    )


def _id(value: str) -> str:
    return value if not value or is_subject(value) else INVALID


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
