"""What keeps Redis ready works on the servers that answer, although another one is down."""

from typing import Any

import pytest
import redis
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from controlplane.redis import endless_scripts
from controlplane.redis.endless_scripts import KILLED, UNKILLABLE, kill_endless_scripts
from controlplane.redis_acl import HARDENED
from controlplane.repair import tasks


class Primary:
    """A primary that is down, or in which a script does not end."""

    def __init__(self, *, down: bool) -> None:
        self.down, self.killed = down, False

    def __enter__(self) -> "Primary":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ping(self) -> None:
        if self.down:
            raise redis.ConnectionError("connection refused")
        if not self.killed:
            raise redis.ResponseError("BUSY a script runs")

    def script_kill(self) -> None:
        self.killed = True


class Written(Primary):
    """A primary whose script has written."""

    def script_kill(self) -> None:
        raise redis.ResponseError("UNKILLABLE Sorry the script already executed write commands")


@pytest.fixture
def primaries(monkeypatch: pytest.MonkeyPatch) -> list[Primary]:
    found = [Primary(down=True), Primary(down=False), Primary(down=False)]
    monkeypatch.setattr(endless_scripts, "_servers", lambda url: iter(found))
    return found


def test_a_script_is_killed_although_another_primary_is_down(primaries: list[Primary]) -> None:
    outcomes = kill_endless_scripts("redis://127.0.0.1:1/")
    assert [next(outcomes), next(outcomes)] == [KILLED, KILLED]
    with pytest.raises(redis.ConnectionError, match="refused"):
        next(outcomes)
    assert [primary.killed for primary in primaries] == [False, True, True]


@pytest.mark.django_db
def test_a_script_that_has_written_is_reported_with_what_ends_it(
    monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1/"
    monkeypatch.setattr(endless_scripts, "_servers", lambda url: iter([Written(down=False)]))
    name, labels = "fuseboard_redis_scripts_blocked_total", {"outcome": UNKILLABLE}
    before = REGISTRY.get_sample_value(name, labels) or 0
    with capture_logs() as logs:
        tasks.keep_redis_ready()
    [line] = [line for line in logs if line["event"] == "redis.script_blocked"]
    assert (line["outcome"], "SHUTDOWN NOSAVE" in line["advice"]) == ("unkillable", True)
    assert REGISTRY.get_sample_value(name, labels) == before + 1


# Reading one metric reads all of them, also those of collectors that other tests have registered.
@pytest.mark.django_db
def test_functions_are_loaded_although_a_primary_could_not_be_asked_for_scripts(
    primaries: list[Primary], settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.ACL_PROFILE, settings.REDIS_URL = HARDENED, "redis://127.0.0.1:1/"
    loaded = []
    monkeypatch.setattr(tasks, "load_functions", lambda store: loaded.append(store) or 0)
    names = "fuseboard_redis_not_ready_total", "fuseboard_publish_failures_total"
    before = [REGISTRY.get_sample_value(name) or 0 for name in names]
    tasks.keep_redis_ready()
    assert len(loaded) == 1
    # It is no publication.
    after = [REGISTRY.get_sample_value(name) or 0 for name in names]
    assert after == [before[0] + 1, before[1]]
