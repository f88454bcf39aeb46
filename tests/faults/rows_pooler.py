"""A pooler between the control plane and Postgres."""

import shutil
import time

from tests.faults.field import CONTROL_PLANE, Broken, Field, Skip
from tests.faults.matrix import row
from tests.faults.seen import Callers
from tests.faults.world import EVERYTHING, quota
from tests.pgbouncer import PgBouncer


@row("38e", "pgbouncer-restarted")
def pgbouncer_restarted(field: Field) -> str:
    """PgBouncer in transaction mode is killed three times: no edit is lost, and pods notice nothing."""
    if shutil.which("pgbouncer") is None:
        raise Skip("pgbouncer is not installed")
    pooler = PgBouncer(field.postgres)
    pooled = {
        "DATABASE_URL": pooler.url,
        "FUSEBOARD_DATABASE_POOLED": "1",
        "FUSEBOARD_DIRECT_DATABASE_URL": field.postgres.url,
    }
    actors = [field.processes.by_name[name] for name in CONTROL_PLANE]
    before = [actor.environment for actor in actors]
    try:
        field.processes.kill(*CONTROL_PLANE)
        for actor in actors:
            actor.environment = {**actor.environment, **pooled}
        field.processes.begin(*CONTROL_PLANE)
        field.processes.wait_until_ready(CONTROL_PLANE)
        field.settle()
        field.load(EVERYTHING, 40)
        field.begin_anew()
        slowest_s = 0.0
        for number in range(3):
            pooler.kill()
            revision = field.edit("set_tenant_quota", **quota(12 + number))
            time.sleep(2)
            pooler.start()
            took_s = field.until(
                "every pod has the edit",
                lambda revision=revision: all(pod.state()["head"][1] >= revision for pod in field.pods),
                20,
            )
            slowest_s = max(slowest_s, took_s)
        seen = Callers(field)
    finally:
        field.processes.kill(*CONTROL_PLANE)
        for actor, environment in zip(actors, before, strict=True):
            actor.environment = environment
        pooler.close()
        field.processes.begin(*CONTROL_PLANE)
        field.processes.wait_until_ready(CONTROL_PLANE)
    field.edit("set_tenant_quota", **quota(8))
    seen.none_over_50_ms()
    if any(seen.changes):
        raise Broken(f"changes of mode {seen.changes}")
    return f"{seen}; 3 edits everywhere {slowest_s:.1f} s after it was back, at most"
