"""The checkpoints of the demo in order, one function each.

A later feature adds its checkpoint to ``MORE``; ``make demo CHECK=all`` runs those too.
"""

from tools.demo.story import (
    alerts,
    backlogs,
    drills,
    envoy,
    imports,
    incidents,
    learned,
    model_calls,
    model_money,
    opening,
    operator,
    outage,
    program,
    protection,
    quotas,
    reconciliation,
    redis,
    restart,
    sidecar,
    survival,
)
from tools.demo.story.chapter import Chapter, CheckFailed, Checkpoint, CheckSkipped

#: Run by ``make demo CHECK=1``, in under a minute. ``up`` and ``clean-exit`` come before and after them.
BASE = (
    Checkpoint("login-roles", opening.login_roles),
    Checkpoint("traffic", opening.traffic),
    Checkpoint("llm-two-lines", model_calls.llm_two_lines),
    Checkpoint("quota-429", quotas.quota_429),
    Checkpoint("quota-edit", quotas.quota_edit),
    Checkpoint("vendor-outage", outage.vendor_outage),
    Checkpoint("recovery", outage.recovery),
    Checkpoint("operator-trip", operator.operator_trip),
    Checkpoint("operator-reset", operator.operator_reset),
    Checkpoint("redis-killed", redis.redis_killed),
    Checkpoint("redis-back", redis.redis_back),
    Checkpoint("control-plane-restart", restart.control_plane_restart),
)

#: Run in addition by ``make demo CHECK=all``.
MORE: tuple[Checkpoint, ...] = (
    Checkpoint("import-100k", imports.import_100k),
    Checkpoint("rollback", imports.rollback),
    Checkpoint("api-idempotency", program.api_idempotency),
    Checkpoint("expiring-override", program.expiring_override),
    Checkpoint("drill", drills.drill),
    Checkpoint("bulkhead-isolation", protection.bulkhead_isolation),
    Checkpoint("retry-budget", protection.retry_budget),
    Checkpoint("fallback-chain", protection.fallback_chain),
    Checkpoint("shed-by-tier", protection.shed_by_tier),
    Checkpoint("backlog", backlogs.backlog),
    Checkpoint("llm-stream-settled", model_calls.llm_stream_settled),
    Checkpoint("llm-midstream", model_calls.llm_midstream),
    Checkpoint("llm-fallback", model_calls.llm_fallback),
    Checkpoint("llm-account-stop", model_calls.llm_account_stop),
    Checkpoint("llm-budget", model_money.llm_budget),
    Checkpoint("costs-ledger", model_money.costs_ledger),
    Checkpoint("learned-suggest", learned.learned_suggest),
    Checkpoint("learned-limit", learned.learned_limit),
    Checkpoint("learned-liar", learned.learned_liar),
    Checkpoint("sidecar", sidecar.sidecar),
    Checkpoint("envoy-429", envoy.envoy_429, may_skip=True),
    Checkpoint("envoy-503", envoy.envoy_503, may_skip=True),
    Checkpoint("reconciled", reconciliation.reconciled),
    Checkpoint("redis-frozen", survival.redis_frozen),
    Checkpoint("redis-flushed", survival.redis_flushed),
    Checkpoint("postgres-down", survival.postgres_down),
    Checkpoint("pod-restart-offline", survival.pod_restart_offline),
    Checkpoint("alert-fires", alerts.alert_fires),
    Checkpoint("runbook-linked", incidents.runbook_linked),
    Checkpoint("alert-resolves", alerts.alert_resolves),
    Checkpoint("level-3", alerts.level_3),
    Checkpoint("incident-report", incidents.incident_report),
)

__all__ = ["BASE", "MORE", "Chapter", "CheckFailed", "CheckSkipped", "Checkpoint"]
