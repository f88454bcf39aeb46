"""Live pods of earlier versions, by what their heartbeats report, and what they do not apply."""

from collections.abc import Collection

from django.db.models import Q, QuerySet

from controlplane.fleet.models import Server, ServerState
from controlplane.phrases import count, listed
from controlplane.policies.newer_settings import WITH_BUDGETS

_LIVE = (ServerState.ONLINE, ServerState.LATE, ServerState.UNKNOWN)
_NAMED = 3
#: Pods that enforce no budget are listed: each lets calls pass that others refuse.
MAX_NAMED = 50


def older_scripts_words(environment: str) -> str:
    """The effect on these pods when a limit begins to count in another way; empty if there are none."""
    return _words(
        _older(environment),
        "after this change they may refuse until the next window, and count from 0 in another"
        " calendar period. Update them first.",
    )


def ignored_words(environment: str, settings: Collection[str]) -> str:
    """The settings that an older agent does not know, and that so have no effect in these pods; or empty."""
    late = [one for one in settings if one in WITH_BUDGETS]
    groups = (
        (_older(environment), [one for one in settings if one not in WITH_BUDGETS]),
        (_unenforcing(environment), late),
    )
    texts = [
        _words(pods, f"{', '.join(named)} do not apply there. Update them first.")
        for pods, named in groups
        if named
    ]
    return " ".join(filter(None, texts))


def dividing_words(environment: str) -> str:
    """The pods that divide the slots of every bulkhead between its tiers; empty if there are none."""
    # A pod without a load has no bulkhead yet.
    pods = _live(environment).exclude(load={})
    # A key that is absent is neither true nor false, so that exclude() would leave the oldest pods out.
    pods = pods.filter(~Q(load__has_key="shares_idle") | Q(load__shares_idle=False))
    return _words(pods, "a tier has only its share of each bulkhead there, also if no other tier calls.")


def unenforced_words(environment: str) -> str:
    """``3 of 20 pods do not enforce budgets``, and which; empty if all enforce them."""
    names = list(_unenforcing(environment).order_by("name").values_list("name", flat=True))
    if not names:
        return ""
    of = count(_live(environment).count(), "pod", grouped=True)
    do = "does" if len(names) == 1 else "do"
    named = listed(names, MAX_NAMED)
    return f"{len(names):,} of {of} {do} not enforce budgets: their agents are older ({named}). Update them."


def _live(environment: str) -> QuerySet[Server]:
    return Server.objects.filter(environment=environment, state__in=_LIVE)


def _unenforcing(environment: str) -> QuerySet[Server]:
    return _live(environment).filter(enforces_budgets=False)


def _older(environment: str) -> QuerySet[Server]:
    # Every agent that reports this also knows the settings of its release.
    return _live(environment).filter(carries_counts=False)


def _words(pods: QuerySet[Server], what: str) -> str:
    names = list(pods.order_by("name").values_list("name", flat=True)[: _NAMED + 1])
    if not names:
        return ""
    if len(names) == 1:
        return f"1 pod runs an older agent ({names[0]}): {what}"
    number = pods.count()
    more = f" and {number - _NAMED:,} more" if number > _NAMED else ""
    return f"{number:,} pods run an older agent ({', '.join(names[:_NAMED])}{more}): {what}"
