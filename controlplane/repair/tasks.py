"""Background repair: publish what was not published in time, and compare Redis with Postgres."""

from datetime import timedelta

import redis
import structlog
from django.conf import settings
from django.utils import timezone
from redis.exceptions import NoPermissionError

from controlplane.breakers.enforce import enforce
from controlplane.celery import app
from controlplane.installation import COMMAND
from controlplane.metric_catalogue import edits as catalogue
from controlplane.policies.models import Environment
from controlplane.publishing.models import OutboxEntry
from controlplane.publishing.publish import PublishError, failures, publish_head, read_head
from controlplane.redis.endless_scripts import KILLED, UNKILLABLE, kill_endless_scripts
from controlplane.redis.functions import load_functions
from controlplane.redis.scripts import PATIENT_S, limits
from controlplane.redis_acl import HARDENED
from controlplane.repair.budgets import forget_budgets, restore_all
from controlplane.repair.redis_nodes import measure_nodes
from controlplane.repair.tenant_digests import reconcile_tenants

log = structlog.get_logger(__name__)

blocked = catalogue.SCRIPTS_BLOCKED.make()
not_ready = catalogue.REDIS_NOT_READY.make()
repairs = catalogue.REPAIRS.make()

#: Published outbox entries are kept this long for inspection.
KEPT = timedelta(days=7)


@app.task(name="publishing.sweep_outbox")
def sweep_outbox() -> None:
    """Publish what was committed but not published because a process died or Redis did not answer."""
    waiting = OutboxEntry.objects.filter(published_at__isnull=True)
    for environment in set(waiting.values_list("environment", flat=True)):
        try:
            publish_head(environment, deadline_s=PATIENT_S)
            if waiting.filter(environment=environment).exclude(reset="").exists():
                enforce(environment, deadline_s=PATIENT_S)
        except (redis.RedisError, PublishError) as error:
            failures.inc()
            log.warning("policy.publish_failed", environment=environment, error=str(error))


@app.task(name="publishing.reconcile")
def reconcile() -> None:
    """Compare the configuration in Redis with Postgres, and repair it.

    The next round refills a Redis that was emptied. The same code runs whether Redis differs or not.
    """
    for row in Environment.objects.order_by("slug"):
        try:
            reconcile_environment(row.slug)
        except (redis.RedisError, PublishError) as error:
            failures.inc()
            log.warning("policy.reconcile_failed", environment=row.slug, error=str(error))


@app.task(name="publishing.reconcile_tenants")
def reconcile_all_tenants() -> None:
    """Compare every record of every tenant, which the head does not cover."""
    for environment in Environment.objects.order_by("slug").values_list("slug", flat=True):
        try:
            found = reconcile_tenants(environment)
        except (redis.RedisError, PublishError) as error:
            failures.inc()
            log.warning("policy.reconcile_failed", environment=environment, error=str(error))
        else:
            repairs.labels("tenants").inc(len(found))


def reconcile_environment(environment: str) -> None:
    store = limits(deadline_s=PATIENT_S)
    before = read_head(store, environment)
    head = publish_head(environment, deadline_s=PATIENT_S)
    if head != before:
        repairs.labels("policy").inc()
        log.warning("policy.repaired", environment=environment, revision=head.revision)
    changed = enforce(environment, deadline_s=PATIENT_S)
    if changed:
        repairs.labels("override").inc(len(changed))


@app.task(name="budgets.restore")
def restore_lost_budgets() -> None:
    """Put back what Redis has lost of budgets, and no pod has put back."""
    slugs = list(Environment.objects.order_by("slug").values_list("slug", flat=True))
    repairs.labels("budgets").inc(restore_all(slugs, timezone.now()))


@app.task(name="budgets.forget")
def forget_old_budgets() -> None:
    forget_budgets(timezone.now())


@app.task(name="redis.keep_ready")
def keep_redis_ready() -> None:
    """End a script that blocks Redis, and load the functions that pods of the profile ``hardened`` call."""
    for step in (_end_endless_scripts, _load_functions):
        try:
            step()
        except redis.RedisError as error:
            not_ready.inc()
            log.warning("redis.not_ready", error=str(error))


def _end_endless_scripts() -> None:
    for outcome in kill_endless_scripts(settings.REDIS_URL):
        blocked.labels(outcome).inc()
        log.error("redis.script_blocked", outcome=outcome, advice=_ADVICE[outcome])


def _load_functions() -> None:
    if settings.ACL_PROFILE == HARDENED and (loaded := load_functions(limits(deadline_s=PATIENT_S))):
        log.warning("redis.functions_loaded", functions=loaded)


_ADVICE = {
    KILLED: "A script did not end and was killed. Change the password of the pods; see docs/deployment.md.",
    UNKILLABLE: "The script has written: only SHUTDOWN NOSAVE ends it; see docs/deployment.md.",
}


@app.task(name="redis.measure_nodes")
def measure_redis_nodes() -> None:
    try:
        measure_nodes()
    except NoPermissionError as error:
        # Users that an older version wrote.
        log.warning("redis.not_measured", error=str(error), do=f"run `{COMMAND} redis_acl` again")
    except redis.RedisError as error:
        log.warning("redis.not_measured", error=str(error))


@app.task(name="publishing.prune_outbox")
def prune_outbox() -> None:
    OutboxEntry.objects.filter(published_at__lt=timezone.now() - KEPT).delete()
