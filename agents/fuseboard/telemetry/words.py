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
MODEL = "fuseboard.model"
COST_MICRO_USD = "fuseboard.cost_micro_usd"
ESTIMATED = "fuseboard.estimated"
WASTED = "fuseboard.wasted"

#: Names of the semantic conventions. They have none for money.
ERROR_TYPE = "error.type"
SERVER_ADDRESS = "server.address"
OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
#: All input, with what the vendor's cache had, and with what was written to it.
INPUT_TOKENS = "gen_ai.usage.input_tokens"
CACHE_READ_TOKENS = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITTEN_TOKENS = "gen_ai.usage.cache_write.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"

DECISION_EVENT = "fuseboard.decision"
OUTCOME_EVENT = "fuseboard.outcome"
RETRY_EVENT = "fuseboard.retry"
USAGE_EVENT = "fuseboard.usage"
