"""Edits of mutes: start one now or later, and end one. A preview names what it would mute."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice

from django.db import transaction

from controlplane.alerts.lifecycle import AlertState
from controlplane.alerts.models import Alert, Mute
from controlplane.alerts.people.rule_words import RULES_TO_MUTE
from controlplane.alerts.state.mutes import active_until, matches, not_ended, words_of
from controlplane.audit.actor import Actor
from controlplane.audit.record import record
from controlplane.errors import InvalidEdit, find
from controlplane.fleet.models import Server
from controlplane.policies.document import environment_of
from controlplane.policies.models import Dependency, Environment
from controlplane.postgres import postgres_now
from controlplane.validation import Problems, check_reason, is_printable, nearest
from fuseboard.contract.words import is_slug, is_subject

LONGEST = timedelta(days=7)
#: The longest period of a mute that is repeated every week.
LONGEST_WEEKLY = timedelta(hours=24)
FURTHEST_START = timedelta(days=90)
#: Mutes of one environment that are not ended: every evaluation reads them.
MAX_MUTES = 100
#: A shorter prefix would match nearly every pod.
SHORTEST_PREFIX = 3
#: The days of resolved alerts that a preview counts, and the most that it reads.
PREVIEW_DAYS = 30
MAX_READ = 5_000
#: The characters of an unknown name that its error repeats.
MAX_NAMED = 80
_WRONG_POD = (
    "Use the name of a pod (letters, digits, dots, dashes and underscores),"
    " or the beginning of names with * at the end."
)


@dataclass(frozen=True, kw_only=True)
class MuteValues:
    """The values that a person enters. ``starts_at`` is ``None`` for now."""

    rule: str = ""
    dependency: str = ""
    pod: str = ""
    starts_at: datetime | None = None
    minutes: int = 60
    weekly: bool = False


@dataclass(frozen=True, kw_only=True)
class Preview:
    """Alerts that a mute matches: those that are open, and how many fired in the past."""

    open: list[Alert]
    past: int
    #: ``past`` is incomplete, because there are more resolved alerts than a preview reads.
    more: bool
    #: A name in the mute that nothing has now, for a person to check; empty for none.
    caution: str


def preview_mute(*, environment: str, values: MuteValues) -> Preview:
    """The alerts that would be muted. Raises ``InvalidEdit``."""
    slug = environment_of(environment).slug
    mute = _checked(slug, values, Problems(), reason="", by="")
    rows = Alert.objects.filter(environment=slug).exclude(state=AlertState.RESOLVED).without_chart()
    past = (
        Alert.objects.filter(environment=slug, state=AlertState.RESOLVED)
        .filter(resolved_at__gte=postgres_now() - timedelta(days=PREVIEW_DAYS))
        .only("key", "level", "subject_kind", "subject_name", "pods")
        .order_by("-resolved_at")
    )
    read = list(islice(past[: MAX_READ + 1].iterator(), MAX_READ + 1))
    return Preview(
        open=[row for row in rows.order_by("-true_since") if matches(mute, row)],
        past=sum(matches(mute, row) for row in read[:MAX_READ]),
        more=len(read) > MAX_READ,
        caution=missing_pod(slug, mute.pod),
    )


def check_mute(*, environment: str, values: MuteValues) -> None:
    """Raise ``InvalidEdit`` with every problem of the values."""
    _checked(environment_of(environment).slug, values, Problems(), reason="", by="")


def missing_pod(environment: str, pattern: str) -> str:
    """Why a mute of these pods may match nothing. A pod that does not run yet can be muted."""
    if not pattern:
        return ""
    pods = Server.objects.filter(environment=environment)
    prefix = pattern.removesuffix("*")
    if (pods.filter(name__startswith=prefix) if prefix != pattern else pods.filter(name=pattern)).exists():
        return ""
    near = nearest(prefix, pods.values_list("name", flat=True)[:MAX_READ])
    return f"No pod has the name {pattern} now.{near}"


def add_mute(*, environment: str, values: MuteValues, reason: str, actor: Actor) -> Mute:
    """Mute from now on, or plan a maintenance window. Raises ``InvalidEdit``."""
    problems = Problems()
    problems.reason(reason)
    slug = environment_of(environment).slug
    mute = _checked(slug, values, problems, reason=reason, by=actor.name[:200])
    with transaction.atomic():
        # Two people at once could both find room for one more.
        Environment.objects.select_for_update().get(pk=slug)
        if not_ended(slug, postgres_now()).count() >= MAX_MUTES:
            problems.add("rule", f"An environment has at most {MAX_MUTES} mutes. End one first.")
            problems.settle()
        mute.save(force_insert=True)
        _record(mute, "mute.created", reason, actor)
    mute.refresh_from_db()
    return mute


def end_mute(*, environment: str, number: int, reason: str, actor: Actor, only_period: bool = False) -> Mute:
    """End a mute, or only the present period of a weekly one. Alerts that still fire are sent at once.

    Raises ``NotFound``, or ``InvalidEdit`` for a period of a mute that is not weekly, or does not apply now.
    """
    check_reason(reason)
    with transaction.atomic():
        now = postgres_now()
        row = find(not_ended(environment, now).select_for_update(), "mute that has not ended", pk=number)
        if only_period:
            row.skipped_until = _end_of_period(row, now)
            row.save(update_fields=["skipped_until"])
            _record(row, "mute.period_ended", reason, actor)
        else:
            row.ended_at, row.ended_by = now, actor.name[:200]
            row.save(update_fields=["ended_at", "ended_by"])
            _record(row, "mute.ended", reason, actor)
    return row


def _end_of_period(row: Mute, now: datetime) -> datetime:
    if not row.weekly:
        raise InvalidEdit({"mute": ["This mute is not repeated: end it as a whole."]})
    until = active_until(row, now)
    if until is None:
        raise InvalidEdit({"mute": ["This mute does not apply now, so that it has no period to end."]})
    return until


def _checked(environment: str, values: MuteValues, problems: Problems, *, reason: str, by: str) -> Mute:
    now = postgres_now()
    starts = values.starts_at or now
    if not (values.rule or values.dependency or values.pod):
        problems.add("rule", "Choose a rule, a dependency, or a pod: a mute never matches every alert.")
    if values.rule and values.rule not in RULES_TO_MUTE:
        problems.add("rule", f"Choose one of: {', '.join(RULES_TO_MUTE)}.")
    if values.dependency and (wrong := _wrong_dependency(environment, values.dependency)):
        problems.add("dependency", wrong)
    # No pod can have another name. A prefix may end with a dash.
    if values.pod and not is_slug(f"{values.pod[:-1]}x" if values.pod.endswith("*") else values.pod):
        problems.add("pod", _WRONG_POD)
    elif values.pod.endswith("*") and len(values.pod) <= SHORTEST_PREFIX:
        problems.add("pod", f"Use {SHORTEST_PREFIX} characters or more before *.")
    if starts < now - timedelta(minutes=5) or starts > now + FURTHEST_START:
        problems.add("starts_at", f"Choose a start from now to {FURTHEST_START.days} days from now.")
    most = LONGEST_WEEKLY if values.weekly else LONGEST
    problems.whole("minutes", values.minutes, 1, int(most.total_seconds()) // 60)
    problems.settle()
    return Mute(
        environment=environment,
        rule=values.rule,
        dependency=values.dependency,
        pod=values.pod,
        reason=reason,
        by=by,
        starts_at=starts,
        ends_at=starts + timedelta(minutes=values.minutes),
        weekly=values.weekly,
    )


def _wrong_dependency(environment: str, name: str) -> str:
    """Why a mute cannot name it. An alert about a removed dependency can still be muted."""
    names = Dependency.objects.filter(environment=environment)
    about = Alert.objects.filter(environment=environment, subject_kind="breaker")
    readable = is_subject(name) and is_printable(name)
    if readable and (names.filter(name=name).exists() or about.filter(subject_name=name).exists()):
        return ""
    near = nearest(name, names.values_list("name", flat=True))
    return f"There is no dependency {name[:MAX_NAMED]!r}.{near}"


def _record(row: Mute, action: str, reason: str, actor: Actor) -> None:
    shown = {
        "matches": words_of(row),
        "starts_at": row.starts_at.isoformat(),
        "ends_at": row.ends_at.isoformat(),
        "weekly": row.weekly,
    }
    ended = action != "mute.created"
    record(
        actor=actor,
        action=action,
        target_kind="mute",
        target_name=words_of(row)[:200],
        before=shown if ended else None,
        after=_after(row, shown, action),
        reason=reason,
        environment=row.environment,
    )


def _after(row: Mute, shown: dict[str, object], action: str) -> dict[str, object] | None:
    if action == "mute.period_ended" and row.skipped_until is not None:
        return shown | {"skipped_until": row.skipped_until.isoformat()}
    return shown if action == "mute.created" else None
