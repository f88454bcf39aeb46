"""Applications pin protobuf: the messages are read by the oldest one that the extra allows."""

import os
import subprocess
from pathlib import Path

import pytest
import redis

from tests.agents.published import publish
from tests.agents.servers import TENANTS
from tests.envoy.rules import daily, policy

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-protos/bin/python"


def test_a_sidecar_answers_envoy_with_the_oldest_protobuf(
    limits: redis.Redis, redis_url: str, tmp_path: Path
) -> None:
    if not PYTHON.exists():
        pytest.skip("no .venv-protos: run make engine-environments")
    publish(limits, policy(daily(1)), revision=7, tenants=dict(TENANTS))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FUSEBOARD_")}
    environment |= {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "agents"), str(ROOT)]),
        "FUSEBOARD_REDIS_URL": redis_url,
        "FUSEBOARD_STATE_DIR": str(tmp_path / "state"),
    }
    # In Python 3.12 and later, protobuf 4.25 warns about its own types.
    warnings = ("-W", "error", "-W", "ignore:Type google._upb:DeprecationWarning")
    command = [str(PYTHON), *warnings, "-m", "tests.envoy.oldest_protobuf", str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "4.25.1"
