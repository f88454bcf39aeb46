"""The oldest supported Redis loads the generated users, and everything works under their rights."""

from pathlib import Path

import pytest
import redis

from tests.controlplane.monitoring.monitoring_tools import tool
from tests.controlplane.redis.test_redis_acl import (  # noqa: F401 - fixtures, used by name
    Server,
    agent_url,
    configured,
    control_url,
    guarded,
    profile,
)
from tests.controlplane.redis.test_redis_acl import (
    test_a_pod_decides_reports_settles_and_receives_edits as pod_works,
)
from tests.controlplane.redis.test_redis_acl import (
    test_the_control_plane_does_all_its_work as control_plane_works,
)


@pytest.fixture(scope="module")
def server() -> Server:
    """Debian's, of version 7.0. Without an option, the file is for the oldest version."""
    return Server(Path(tool("redis-server")))


def test_the_control_plane_does_all_its_work_on_redis_7_0(
    configured: str,  # noqa: F811
    control_url: str,  # noqa: F811
) -> None:
    with redis.Redis.from_url(control_url) as client:
        version = str(client.info("server")["redis_version"])
    if not version.startswith("7.0."):
        pytest.skip(f"redis-server is {version}, not 7.0")
    control_plane_works(configured, control_url)


def test_a_pod_decides_and_reports_on_redis_7_0(
    configured: str,  # noqa: F811
    agent_url: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    pod_works(configured, agent_url, tmp_path)
