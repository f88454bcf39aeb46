"""The names of attributes, events and metrics, in the style of OpenTelemetry's semantic conventions."""

from fuseboard.contract import pod_figures


def attribute(label: str) -> str:
    """The attribute of a figure's label."""
    return f"fuseboard.{label}"


KIND = attribute(pod_figures.KIND)
ALLOWED = "fuseboard.allowed"
DEPENDENCY = attribute(pod_figures.DEPENDENCY)
REASON = attribute(pod_figures.REASON)
RULE = "fuseboard.rule"
MODE = attribute(pod_figures.MODE)
REVISION = "fuseboard.revision"
LEASED = "fuseboard.leased"
RETRY_AFTER_MS = "fuseboard.retry_after_ms"
QUEUE_WAIT_MS = "fuseboard.queue_wait_ms"
DURATION_MS = "fuseboard.duration_ms"
ATTEMPT = "fuseboard.attempt"
OUTCOME = attribute(pod_figures.OUTCOME)
WAIT_MS = "fuseboard.wait_ms"
GIVEN_UP = "fuseboard.given_up"
#: A name of the semantic conventions.
ERROR_TYPE = "error.type"

DECISION_EVENT = "fuseboard.decision"
OUTCOME_EVENT = "fuseboard.outcome"
RETRY_EVENT = "fuseboard.retry"
