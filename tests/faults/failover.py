"""A primary, its replica and three Sentinels beside the servers of a field."""

import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.agents.redis_topologies import DOWN_AFTER_MS, Member, Watched
from tests.faults.field import Broken, Field

#: Noticed by the Sentinels, agreed on, and carried out, on a machine that is busy meanwhile.
FAILOVER_S = DOWN_AFTER_MS / 1000 + 12


@contextmanager
def sentinels(field: Field) -> Iterator[Watched]:
    """Its data is empty: pods have their configuration from the gateway."""
    formation = Watched(Path(tempfile.mkdtemp(prefix="sentinels-", dir=field.folder)))
    try:
        formation.start()
        yield formation
    finally:
        formation.stop()


def kill_primary(field: Field, formation: Watched) -> float:
    """Everything that it has answered is on the replica when it is killed. Returns how long it took."""
    return _fail_over(field, formation, signal.SIGKILL)


def freeze_primary(field: Field, formation: Watched) -> float:
    """Its connections stay open, and it is a primary when it goes on."""
    return _fail_over(field, formation, signal.SIGSTOP)


def _fail_over(field: Field, formation: Watched, by: signal.Signals) -> float:
    before = formation.primary()
    # Of all writes before this one: the connection that asks must have written, too.
    before.client.set("replicated", 1)
    if before.client.execute_command("WAIT", 1, 5_000) != 1:
        raise Broken("the replica is not in step")
    before.send(by)
    return field.until(
        "Sentinels name the replica, and it is a primary",
        lambda: formation.primary() is not before and _is_primary(formation.primary()),
        FAILOVER_S,
    )


def _is_primary(member: Member) -> bool:
    return bool(member.client.info("replication")["role"] == "master")
