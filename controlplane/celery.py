"""Background work: ``celery -A controlplane worker`` and ``celery -A controlplane beat``.

Every task is short, may run twice at once, and is dropped when it has waited too long: the next run
does the same work. Requests never enqueue tasks.
"""

import os
import sys
from pathlib import Path
from typing import Any

import structlog
from celery import Celery
from celery.signals import beat_init, celeryd_init, setup_logging, worker_shutting_down
from django.conf import settings
from django.utils.log import configure_logging

from controlplane import installation, loading
from controlplane.embedded import reachable
from controlplane.reloading import follow_log_level
from controlplane.shutdown import EndWatch

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
# Celery would run all checks of Django, which import every page and operation, and ignore what they found.
os.environ.setdefault("CELERY_SKIP_CHECKS", "1")

#: From a signal to the end of a worker: a task in progress may take CELERY_TASK_TIME_LIMIT, which is 30 s.
WORKER_END_S = 35.0

#: Whether this process is beat alone. It sends names of tasks, so it imports no task and no model of Django.
_BEAT = "beat" in sys.argv[1:]

if _BEAT:
    installation.sign_nothing()
if "celery" in Path(sys.argv[0]).parts:
    # Celery's own program, which has loaded this first. A worker ends it with `_end_loading`.
    loading.begin()

app = Celery("controlplane", fixups=[] if _BEAT else None)
app.config_from_object("django.conf:settings", namespace="CELERY")
if not _BEAT:
    app.conf.imports = ["controlplane.worker_metrics"]
    app.autodiscover_tasks(
        [
            "controlplane.repair",
            "controlplane.breakers",
            "controlplane.backlogs",
            "controlplane.audit",
            "controlplane.editing",
            "controlplane.schedules",
            "controlplane.change_requests",
            "controlplane.usage",
            "controlplane.refusals",
            "controlplane.series",
            "controlplane.ledger",
            "controlplane.suggestions",
            "controlplane.reconciliation",
            "controlplane.alerts",
            "controlplane.weekly",
            "controlplane.siem",
            "controlplane.api",
        ]
    )


def _every(seconds: float, task: str) -> dict[str, Any]:
    # After a few rounds a waiting task is useless: a later round sees the same state.
    return {"task": task, "schedule": seconds, "options": {"expires": 5 * seconds}}


app.conf.beat_schedule = {
    "sweep-outbox": _every(1, "publishing.sweep_outbox"),
    "reconcile": _every(2, "publishing.reconcile"),
    "keep-redis-ready": _every(2, "redis.keep_ready"),
    "restore-budgets": _every(10, "budgets.restore"),
    "forget-budgets": _every(3600, "budgets.forget"),
    "measure-redis": _every(10, "redis.measure_nodes"),
    "reconcile-tenants": _every(60, "publishing.reconcile_tenants"),
    "expire-overrides": _every(1, "breakers.expire_overrides"),
    "collect-transitions": _every(1, "breakers.collect_transitions"),
    "measure-backlogs": _every(2, "backlogs.measure"),
    "forget-old-replies": _every(3600, "api.forget_old_replies"),
    "sample-usage": _every(10, "usage.sample"),
    "roll-up-usage": _every(30, "usage.roll_up"),
    "forget-usage": _every(3600, "usage.forget"),
    "roll-up-refusals": _every(60, "refusals.roll_up"),
    "forget-refusals": _every(3600, "refusals.forget"),
    "seal-series": _every(60, "series.seal"),
    "forget-series": _every(3600, "series.forget"),
    "tidy-ledger": _every(3600, "ledger.tidy"),
    "look-for-suggestions": _every(300, "suggestions.look"),
    "note-following": _every(10, "suggestions.note_following"),
    "copy-allowed-alone": _every(30, "reconciliation.copy"),
    "forget-allowed-alone": _every(3600, "reconciliation.forget"),
    "evaluate-alerts": _every(5, "alerts.evaluate"),
    "deliver-alerts": _every(1, "alerts.deliver"),
    "ping-watchdog": _every(60, "alerts.watchdog"),
    "forget-alerts": _every(3600, "alerts.forget"),
    "make-weekly-summaries": _every(3600, "weekly.make"),
    "send-weekly-summaries": _every(300, "weekly.send"),
    "run-due": _every(1, "schedules.run_due"),
    "work-drafts": _every(1, "policies.work_drafts"),
    "expire-requests": _every(60, "approvals.expire_requests"),
    "export-audit": _every(2, "audit_export.export"),
    "note-audit-heads": _every(300, "audit.note_heads"),
    "prune-outbox": _every(3600, "publishing.prune_outbox"),
}


@celeryd_init.connect
@beat_init.connect
def _end_loading(**_: Any) -> None:
    """The worker has imported its tasks, and beat has none."""
    loading.end()


@celeryd_init.connect
def _log_problems_of_servers(**_: Any) -> None:
    """Log which variable is wrong: Celery retries without naming it."""
    _log_problems()


@beat_init.connect
def _log_problem_of_broker(**_: Any) -> None:
    """Beat needs the broker only, and may be in a network without the other servers."""
    _log_problems("FUSEBOARD_BROKER_URL")


def _log_problems(*only: str) -> None:
    for variable, problem in reachable.problems(*only).items():
        structlog.get_logger(__name__).error("server.unreachable", variable=variable, problem=problem)


@celeryd_init.connect
def _end_in_time(**_: Any) -> None:
    """The pool ``threads`` enforces no time limit, so a worker would wait for a task for ever."""
    watch = EndWatch("worker", within_s=WORKER_END_S)
    worker_shutting_down.connect(lambda **_: watch.begin(), weak=False)


@setup_logging.connect
def _keep_our_logs(**_: Any) -> None:
    """Celery leaves logging alone when this signal has a receiver. In beat, Django has not configured it."""
    configure_logging(settings.LOGGING_CONFIG, settings.LOGGING)
    follow_log_level()
