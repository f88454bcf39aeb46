"""The progress of an alert in its row. The worker keeps the rows in Postgres, a gateway in memory."""

from datetime import UTC, datetime

from controlplane.alerts.lifecycle import AlertProgress, AlertState, ResolvedWhy
from controlplane.alerts.models import Alert
from controlplane.alerts.rules.rule import Finding
from controlplane.alerts.state.mutes import MAX_PODS

#: The transition of a breaker, with its cause, is collected some seconds after a pod reports it. Until then,
#: the words of the beginning are replaced.
CAUSE_ARRIVES_S = 15.0


def progress_of(row: Alert) -> AlertProgress:
    return AlertProgress(
        state=AlertState(row.state),
        severity="critical" if row.severity == "critical" else "warning",
        true_since=row.true_since.timestamp(),
        level_since=row.level_since.timestamp(),
        clear_since=row.clear_since.timestamp() if row.clear_since else None,
        idle_since=row.idle_since.timestamp() if row.idle_since else None,
    )


def fields_after(
    row: Alert, after: AlertProgress, finding: Finding | None, level: int, now: float, *, hidden: bool = False
) -> dict[str, object]:
    """The fields of the row after an evaluation. ``hidden``: the figures behind its rule are missing."""
    fields: dict[str, object] = {
        "state": after.state.value,
        "level": level,
        "severity": after.severity,
        "worst": "critical" if "critical" in (row.worst, after.severity) else after.severity,
        "true_since": _moment(after.true_since),
        "level_since": _moment(after.level_since),
        "clear_since": _moment(after.clear_since),
        "idle_since": _moment(after.idle_since),
        "blind_since": (row.blind_since or _moment(now)) if hidden else None,
    }
    if finding is not None:
        fields |= {
            "text": finding.text[:500],
            "detail": finding.detail[:2000],
            "runbook": finding.runbook[:100],
            "subject_kind": finding.subject.kind,
            "subject_name": finding.subject.name[:200],
            "subject_quota": finding.subject.quota[:200],
            "pods": list(finding.pods) if len(finding.pods) <= MAX_PODS else [],
        }
        if not row.text or now - after.true_since <= CAUSE_ARRIVES_S:
            fields |= {"begun_text": fields["text"], "begun_detail": fields["detail"]}
        if fields["worst"] != row.worst:
            fields["worst_text"] = fields["text"]
    if after.state is AlertState.FIRING and row.fired_at is None:
        fields["fired_at"] = _moment(now)
        fields["fired_text"] = fields.get("text", row.text)
    if after.state is AlertState.RESOLVED:
        fields["resolved_at"] = _moment(now)
        why = ResolvedWhy.CLEARED if after.idle_since is None else ResolvedWhy.NO_TRAFFIC
        fields["resolved_why"] = why.value
    return fields


def _moment(at: float | None) -> datetime | None:
    return None if at is None else datetime.fromtimestamp(at, UTC)
