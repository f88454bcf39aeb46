"""Everything works under the generated rights, and everything else is refused, on a real Valkey."""

import asyncio
import json
import re
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import redis
from django.core.management import CommandError, call_command
from django.utils import timezone

import fuseboard
from controlplane import redis_acl
from controlplane.breakers import overrides
from controlplane.breakers import tasks as breaker_tasks
from controlplane.breakers.models import Transition
from controlplane.editing import edits
from controlplane.embedded.children import free_port, spawn, stop, wait_until
from controlplane.embedded.valkey import binary
from controlplane.repair import tasks
from fuseboard.contract import keys
from fuseboard.contract.words import OverrideMode
from tests.people import ADA
from tests.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
AGENT, CONTROL = "the password of the pods", "the password of the control plane"
COMMON: dict[str, Any] = {"environment": "production", "reason": "for a test", "actor": ADA}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """``host:port`` of a Valkey that has read the file."""
    folder = tmp_path_factory.mktemp("acl")
    file = folder / "users.acl"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FUSEBOARD_ACL_AGENT_PASSWORD", AGENT)
        patch.setenv("FUSEBOARD_ACL_CONTROL_PASSWORD", CONTROL)
        call_command(
            "redis_acl", "--to", str(file), "--environment", "production", "--environment", "staging"
        )
    assert AGENT not in file.read_text()
    port = free_port()
    with (folder / "log").open("wb") as log:
        process = spawn([binary(), "-"], log=log, stdin=subprocess.PIPE)
    assert process.stdin is not None
    with process.stdin as stdin:
        stdin.write(f'bind 127.0.0.1\nport {port}\ndir "{folder}"\nsave ""\naclfile "{file}"\n'.encode())
    try:
        assert wait_until(lambda: answers(port), process, within_s=10), (folder / "log").read_text()
        yield f"127.0.0.1:{port}"
    finally:
        stop(process, grace_s=5)


def answers(port: int) -> bool:
    try:
        with redis.Redis(port=port) as client:
            client.ping()
    except redis.AuthenticationError:
        return True
    except redis.ConnectionError:
        return False
    return False


def url_of(guarded: str, user: str, password: str) -> str:
    return f"redis://{user}:{password.replace(' ', '%20')}@{guarded}/0"


@pytest.fixture
def control_url(guarded: str, settings: Any) -> str:
    settings.REDIS_URL = url_of(guarded, "control", CONTROL)
    return str(settings.REDIS_URL)


@pytest.fixture
def agent_url(guarded: str) -> str:
    return url_of(guarded, "agent-production", AGENT)


@pytest.fixture
def configured(transactional_db: Any, control_url: str) -> str:
    """Published by the control plane's user, into an empty server."""
    with redis.Redis.from_url(control_url) as client:
        client.eval("for i = 1, #KEYS do redis.call('DEL', KEYS[i]) end", 1, keys.config_head("production"))
    edits.create_environment(**COMMON)
    edits.create_tenant(tenant="acme", tier="pro", **COMMON)
    edits.create_dependency(dependency="openai", kind="llm", breaker={"consecutive_failures": 2}, **COMMON)
    edits.set_vendor_limit(
        dependency="openai", name="contract", limit=100, window_s=60, expected_version=None, **COMMON
    )
    return "production"


def test_anonymous_and_default_users_are_refused(guarded: str) -> None:
    for url in (f"redis://{guarded}/0", f"redis://:{CONTROL.replace(' ', '%20')}@{guarded}/0"):
        with redis.Redis.from_url(url) as client, pytest.raises(redis.AuthenticationError):
            client.ping()


def test_the_control_plane_does_all_its_work(configured: str, control_url: str) -> None:
    with redis.Redis.from_url(control_url, decode_responses=True) as client:
        assert int(client.hget(keys.config_head(configured), "revision") or 0) >= 4
        expires = timezone.now() + timedelta(minutes=5)
        overrides.override_breaker(
            dependency="openai", mode=OverrideMode.FORCED_OPEN, expires_at=expires, **COMMON
        )
        assert client.get(keys.override(configured, "openai"))
        overrides.end_override(dependency="openai", **COMMON)
        overrides.reset_breaker(dependency="openai", **COMMON)
        client.delete(keys.config_head(configured))
        for task in (
            tasks.sweep_outbox,
            tasks.reconcile,
            tasks.reconcile_all_tenants,
            breaker_tasks.expire_overrides,
            breaker_tasks.collect_transitions,
        ):
            task()
        assert client.hget(keys.config_head(configured), "revision"), "healed"
    assert Transition.objects.exists()


def test_a_pod_decides_reports_settles_and_receives_edits(
    configured: str, agent_url: str, tmp_path: Path
) -> None:
    agent = fuseboard.Agent(
        settings=fuseboard.AgentSettings(redis_url=agent_url, server="shop-1", state_dir=tmp_path / "state")
    )
    with asyncio.Runner() as runner:
        runner.run(agent.start())
        try:
            first = runner.run(agent.admit_request("acme"))
            assert (first.allowed, first.mode) == (True, fuseboard.Mode.SHARED)
            for _ in range(2):
                runner.run(a_failed_call(agent))
            edits.suspend_tenant(tenant="acme", expected_version=1, **COMMON)
            runner.run(eventually(lambda: agent.configuration.snapshot.head.revision > first.revision))
            runner.run(eventually(lambda: agent.admit_request("acme"), accept=lambda d: not d.allowed))
        finally:
            runner.run(agent.stop())
    breaker_tasks.collect_transitions()
    assert Transition.objects.filter(to_state="open").exists()


async def a_failed_call(agent: fuseboard.Agent) -> None:
    with pytest.raises(ConnectionError, match="vendor"):
        async with agent.call("openai"):
            raise ConnectionError("the vendor is down")
    await asyncio.sleep(0.05)


def test_the_doctor_finds_nothing_wrong(
    configured: str, agent_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from fuseboard.cli import main

    monkeypatch.setenv("FUSEBOARD_REDIS_URL", agent_url)
    monkeypatch.setenv("FUSEBOARD_STATE_DIR", "off")
    monkeypatch.delenv("FUSEBOARD_URL", raising=False)
    main(["doctor", "--json"])
    findings = json.loads(capsys.readouterr().out)["findings"]
    failed = {finding["check"] for finding in findings if finding["level"] == "fail"}
    assert failed <= {"latency"}  # the duration shows how busy this machine is
    statuses = {finding["check"]: finding["level"] for finding in findings}
    assert statuses["scripts"] == statuses["configuration"] == statuses["default user"] == "ok"


REFUSED_TO_AGENTS = [
    ("FLUSHALL",),
    ("FLUSHDB",),
    ("SWAPDB", "0", "1"),
    ("CONFIG", "GET", "requirepass"),
    ("CONFIG", "SET", "maxmemory-policy", "allkeys-lru"),
    ("ACL", "LIST"),
    ("ACL", "SETUSER", "x", "on"),
    ("KEYS", "*"),
    ("SCAN", "0"),
    ("RANDOMKEY",),
    ("SHUTDOWN", "NOSAVE"),
    ("MONITOR",),
    ("CLIENT", "KILL", "TYPE", "normal"),
    ("CLIENT", "PAUSE", "1"),
    ("CLUSTER", "RESET"),
    ("SCRIPT", "FLUSH"),
    ("SCRIPT", "KILL"),
    ("FUNCTION", "LIST"),
    ("REPLICAOF", "127.0.0.1", "1"),
    ("MIGRATE", "127.0.0.1", "1", "x", "0", "1"),
    ("RENAME", keys.ramp("production"), "x"),
    ("SUBSCRIBE", keys.config_channel("staging")),
    ("PSUBSCRIBE", "*"),
    ("PUBLISH", keys.config_channel("production"), "{}"),
    ("HSET", keys.config_head("production"), "revision", "99"),
    ("DEL", keys.config_head("production")),
    ("HSET", keys.tenant_bucket("production", 7), "acme", "{}"),
    ("XADD", keys.emergency("production"), "*", "note", "{}"),
    ("HGET", keys.config_head("staging"), "revision"),
    ("GET", keys.breaker("staging", "openai")),
    ("SET", keys.override("staging", "openai"), "x"),
    ("SET", "anything", "else"),
    ("EVAL", "return redis.call('SET', KEYS[1], 'x')", "1", keys.config_head("production")),
    ("EVAL", "return redis.call('GET', 'anything')", "0"),
    ("EVAL", "return redis.call('FLUSHALL')", "0"),
    ("EVAL", "return redis.call('SET', ARGV[1], 'x')", "0", keys.breaker("staging", "openai")),
]


@pytest.mark.parametrize("command", REFUSED_TO_AGENTS, ids=" ".join)
def test_a_pod_may_not(agent_url: str, command: tuple[str, ...]) -> None:
    with redis.Redis.from_url(agent_url) as client, pytest.raises(redis.ResponseError) as error:
        client.execute_command(*command)
    assert re.search("permission|NOPERM|ACL failure", str(error.value)), str(error.value)


REFUSED_TO_CONTROL = [
    command
    for command in REFUSED_TO_AGENTS
    if command[0] in ("FLUSHALL", "FLUSHDB", "CONFIG", "ACL", "KEYS", "SHUTDOWN", "MONITOR")
    or command[1:2] == ("anything",)
] + [("SUBSCRIBE", "elsewhere"), ("DEL", "celery")]


@pytest.mark.parametrize("command", REFUSED_TO_CONTROL, ids=" ".join)
def test_the_control_plane_may_not(control_url: str, command: tuple[str, ...]) -> None:
    with redis.Redis.from_url(control_url) as client, pytest.raises(redis.ResponseError) as error:
        client.execute_command(*command)
    assert re.search("permission|NOPERM|ACL failure", str(error.value)), str(error.value)


@pytest.mark.parametrize(
    ("folder", "granted"),
    [
        ("agents/fuseboard/lua", (*redis_acl.AGENT, *redis_acl.SPEAK)),
        ("controlplane", redis_acl.CONTROL),
    ],
)
def test_every_command_of_a_script_is_granted_to_its_callers(folder: str, granted: tuple[str, ...]) -> None:
    used = set()
    for file in (ROOT / folder).rglob("*.lua"):
        used |= {word.lower() for word in re.findall(r"redis\.p?call\(\s*'([A-Za-z]+)'", file.read_text())}
    assert used
    assert used <= set(granted)


def test_every_key_of_the_contract_is_granted_to_a_user() -> None:
    line = redis_acl.agent_user("production", AGENT)
    prefixes = [word.partition("~")[2].rstrip("*") for word in line.split() if "~" in word]
    for key in (
        keys.breaker("production", "openai"),
        keys.vendor_limit("production", "openai", "contract"),
        keys.dependency_quota("production", "openai", "acme", "q"),
        keys.tenant_quota("production", "acme", "q"),
        keys.member_quota("production", "acme", "ann", "q"),
        keys.subject_limit("production", "10.0.0.1", "l"),
        keys.ramp("production"),
        keys.config_head("production"),
        keys.own_bucket("production", 1023),
    ):
        assert any(key.startswith(prefix) for prefix in prefixes), key
    assert not any(keys.emergency("production").startswith(prefix) for prefix in prefixes)


@pytest.mark.parametrize(
    ("agent", "control", "says"),
    [
        ("", CONTROL, "Set FUSEBOARD_ACL"),
        (CONTROL, CONTROL, "different passwords"),
        ("short", CONTROL, "20 characters"),
    ],
)
def test_passwords_are_required(monkeypatch: pytest.MonkeyPatch, agent: str, control: str, says: str) -> None:
    monkeypatch.setenv("FUSEBOARD_ACL_AGENT_PASSWORD", agent)
    monkeypatch.setenv("FUSEBOARD_ACL_CONTROL_PASSWORD", control)
    with pytest.raises(CommandError, match=says):
        call_command("redis_acl", stdout=StringIO())
