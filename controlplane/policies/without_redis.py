"""Describes what a limit allows while Redis is down, for the forms where the limit is typed."""

from fuseboard.contract.policy import Limit, Tuning
from fuseboard.contract.shares import allowed_alone, divides_what_is_left, reserved_calls, settled_limit
from fuseboard.contract.words import FailurePolicy


def refuses_most(limit: Limit, *, pods: int, tuning: Tuning) -> bool:
    """Whether a pod allows less than one call per window while Redis is down."""
    if limit.shadow or limit.failure_policy is FailurePolicy.FAIL_OPEN:
        return False
    if limit.failure_policy is FailurePolicy.FAIL_CLOSED or limit.limit == 0:
        return True
    if limit.failure_policy is FailurePolicy.RESERVED and not divides_what_is_left(limit):
        return reserved_calls(settled_limit(limit, tuning)) < pods
    return not divides_what_is_left(limit) and limit.limit < pods


def without_redis(limit: Limit, *, pods: int, tuning: Tuning) -> str:
    """One or two sentences. ``pods`` is the number of live pods."""
    if limit.shadow:
        return "Pods allow every call: the limit only counts."
    if limit.failure_policy is FailurePolicy.FAIL_OPEN:
        return (
            f"Pods allow every call, also beyond {limit.limit:,}. They count the calls in a journal and"
            " report them when Redis returns."
        )
    if limit.failure_policy is FailurePolicy.FAIL_CLOSED or limit.limit == 0:
        return "Pods refuse every call."
    if divides_what_is_left(limit):
        alone = (
            " A pod that never asked Redis refuses." if limit.failure_policy is FailurePolicy.RESERVED else ""
        )
        return f"Pods divide what was left of {limit.limit:,} when Redis last answered.{alone}"
    if limit.failure_policy is FailurePolicy.RESERVED:
        part = reserved_calls(settled_limit(limit, tuning))
        if part == 0:
            return (
                "Pods refuse every call: nothing is reserved of a limit that remembers calls for longer than"
                " share_rest_ms, or of a part below one call."
            )
        return (
            f"All pods together allow {part:,} of {limit.limit:,}; with Redis, {limit.limit - part:,}."
            " A pod without a reserved share refuses."
        )
    alone = allowed_alone(limit, servers=pods, share=None).words.removesuffix(" here")
    if limit.limit < pods:
        # A pod takes its turn a third as often as its part says, so that no window has more than the limit.
        return f"Each of {pods:,} pods allows {alone}, all together about a third of the limit."
    return f"Each of {pods:,} pods allows {alone}." if pods > 1 else f"The pod allows {alone}."
