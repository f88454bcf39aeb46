"""A control plane of real processes over the test's database."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.controlplane.web_process import database_url
from tools.demo.processes import Process, Processes
from tools.demo.seed import Seeded, seed


@pytest.fixture
def seeded(transactional_db: Any, limits: redis.Redis) -> Seeded:
    """The demo's tenants, dependencies and people."""
    return seed()


@pytest.fixture
def control_plane(seeded: Seeded, tmp_path: Path) -> Iterator[Processes]:
    """Web and gateway as processes; no worker, so that only the edit itself publishes."""
    processes = Processes(tmp_path / "logs")
    environment = os.environ | {
        "DATABASE_URL": database_url(),
        "FUSEBOARD_DATA_DIR": str(tmp_path),
        "FUSEBOARD_PLAIN_HTTP": "1",
        "FUSEBOARD_BEAT_MS": "200",
    }
    for name in ("web", "gateway"):
        arguments = ["manage.py", name, "--exactly", "--port", "{port}"]
        processes.add(Process(name, arguments, environment, health="/healthz"))
    try:
        processes.begin("web", "gateway")
        processes.wait_until_ready(["web", "gateway"])
        yield processes
    finally:
        processes.stop("web", "gateway")
