"""What ``manage.py`` does before a command runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management.base import CommandError

from controlplane.embedded.children import free_port
from controlplane.listening import listen

PROJECT = Path(__file__).resolve().parents[2]


def manage(*arguments, **variables):
    return subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=PROJECT,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_configured_server_that_does_not_answer_is_named_without_its_password():
    port = free_port()
    ended = manage(
        "migrate",
        DATABASE_URL=f"postgresql://somebody:hush@127.0.0.1:{port}/fuseboard",
        FUSEBOARD_BROKER_URL=f"redis://:hush@127.0.0.1:{port}",
    )
    assert ended.returncode == 1
    lines = ended.stderr.splitlines()
    assert [line.split()[0] for line in lines] == ["DATABASE_URL", "FUSEBOARD_BROKER_URL"]
    assert f"127.0.0.1:{port}" in lines[0]
    assert "hush" not in ended.stderr


def test_help_starts_no_server(tmp_path):
    ended = manage("help", FUSEBOARD_DATA_DIR=str(tmp_path), DATABASE_URL="")
    assert ended.returncode == 0
    assert "gateway" in ended.stdout
    assert not (tmp_path / "postgres").exists()


@pytest.mark.parametrize("command", ["redis_acl", "help", "findstatic"])
def test_a_command_that_touches_no_server_writes_no_secret_key(tmp_path, command):
    """It ended with an error where the disk is read-only."""
    passwords = {"FUSEBOARD_ACL_AGENT_PASSWORD": "a" * 20, "FUSEBOARD_ACL_CONTROL_PASSWORD": "c" * 20}
    folder = tmp_path / "data"
    variables = {**passwords, "FUSEBOARD_DATA_DIR": str(folder), "FUSEBOARD_SECRET_KEY": ""}
    files = ["dashboard/fuseboard.css"] if command == "findstatic" else []
    ended = manage(command, *files, **variables)
    assert ended.returncode in (0, 1), ended.stderr
    assert "Traceback" not in ended.stderr
    assert not folder.exists()


def test_a_port_in_use_is_replaced_unless_exactly_is_set():
    said = []
    with listen("127.0.0.1", 0, exactly=False, say=said.append) as taken:
        port = taken.getsockname()[1]
        with listen("127.0.0.1", port, exactly=False, say=said.append) as other:
            assert other.getsockname()[1] not in (0, port)
        assert len(said) == 1
        assert str(port) in said[0]
        with pytest.raises(CommandError, match=str(port)):
            listen("127.0.0.1", port, exactly=True, say=said.append)
