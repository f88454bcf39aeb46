"""Everything works under the generated rights, and everything else is refused, on a real Valkey."""

import asyncio
import json
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha1, sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis
from django.core.management import call_command
from django.utils import timezone
from redis.exceptions import NoPermissionError

import fuseboard
from controlplane import redis_acl
from controlplane.backlogs.collect import measure_backlogs
from controlplane.backlogs.dead_jobs import read_dead
from controlplane.backlogs.edits import return_dead_jobs
from controlplane.breakers import overrides
from controlplane.breakers import tasks as breaker_tasks
from controlplane.breakers.models import Transition
from controlplane.editing import edits
from controlplane.embedded.children import free_port, spawn, stop
from controlplane.embedded.children import wait_until as wait_for_process
from controlplane.embedded.valkey import binary
from controlplane.redis.nodes import read_nodes
from controlplane.repair import tasks
from fuseboard.contract import keys
from fuseboard.contract.scripts import ADMIT, SCRIPTS
from fuseboard.contract.store_url import StoreUrl
from fuseboard.contract.words import OverrideMode
from fuseboard.store import Store, open_store
from fuseboard.store.pipelined_connection import open_pipe
from tests.agents.backlog_scripts import BacklogStore
from tests.controlplane.redis.refused_by_redis import REFUSED_TO_AGENTS
from tests.people import ADA
from tests.waiting import PATIENCE_S, eventually, wait_until

AGENT, CONTROL = "the password of the pods", "the password of the control plane"
STAGING = "the password of other pods"
KEEPER = "the-password-of-a-test"
COMMON: dict[str, Any] = {"environment": "production", "reason": "for a test", "actor": ADA}


@pytest.fixture(scope="module", params=redis_acl.PROFILES)
def profile(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def only(profile: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("profile", [profile], indirect=True)


@dataclass(frozen=True)
class Server:
    """A program, and the options of ``redis_acl`` for it."""

    program: Path
    options: tuple[str, ...] = ()


@pytest.fixture(scope="module")
def server() -> Server:
    return Server(binary(), ("--server-version", "9.0"))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, profile: str, server: Server) -> Iterator[str]:
    """``host:port`` of a server that has read the file of this profile."""
    folder = tmp_path_factory.mktemp("acl")
    file = folder / "users.acl"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FUSEBOARD_ACL_AGENT_PASSWORDS", f"production={AGENT},staging={STAGING}")
        patch.setenv("FUSEBOARD_ACL_CONTROL_PASSWORD", CONTROL)
        patch.setenv("FUSEBOARD_ACL_PROFILE", profile)
        call_command("redis_acl", "--to", str(file), *server.options)
    assert AGENT not in file.read_text()
    with file.open("a") as lines:
        # For what only an administrator of the server does.
        lines.write(f"user keeper on >{KEEPER} ~* &* +@all\n")
    port = free_port()
    with (folder / "log").open("wb") as log:
        process = spawn([server.program, "-"], log=log, stdin=subprocess.PIPE)
    assert process.stdin is not None
    with process.stdin as stdin:
        stdin.write(f'bind 127.0.0.1\nport {port}\ndir "{folder}"\nsave ""\naclfile "{file}"\n'.encode())
        stdin.write(b"busy-reply-threshold 100\n")
    try:
        began = wait_for_process(lambda: answers(port), process, within_s=PATIENCE_S)
        assert began, (folder / "log").read_text()
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
def control_url(guarded: str, profile: str, settings: Any) -> str:
    settings.ACL_PROFILE = profile
    settings.REDIS_URL = url_of(guarded, "control", CONTROL)
    return str(settings.REDIS_URL)


@pytest.fixture
def agent_url(guarded: str) -> str:
    return url_of(guarded, "agent-production", AGENT)


@pytest.fixture
def configured(transactional_db: Any, control_url: str) -> str:
    """Published by the control plane's user, into an empty server."""
    with redis.Redis.from_url(control_url) as client:
        client.delete(keys.config_head("production"))
    tasks.keep_redis_ready()
    edits.create_environment(**COMMON)
    edits.create_tenant(tenant="acme", tier="pro", **COMMON)
    edits.create_dependency(dependency="openai", kind="llm", breaker={"consecutive_failures": 2}, **COMMON)
    edits.set_vendor_limit(
        dependency="openai",
        name="contract",
        limit=100,
        window_s=60,
        # On a busy machine Redis may miss the deadline of a call.
        failure_policy="fail_open",
        expected_version=None,
        **COMMON,
    )
    return "production"


def test_anonymous_and_default_users_are_refused(guarded: str) -> None:
    for url in (f"redis://{guarded}/0", f"redis://:{CONTROL.replace(' ', '%20')}@{guarded}/0"):
        with redis.Redis.from_url(url) as client, pytest.raises(redis.AuthenticationError):
            client.ping()


def test_a_pod_cannot_log_in_for_another_environment(guarded: str) -> None:
    for user, password in (("agent-staging", AGENT), ("agent-production", STAGING), ("control", AGENT)):
        with (
            redis.Redis.from_url(url_of(guarded, user, password)) as client,
            pytest.raises(redis.AuthenticationError),
        ):
            client.ping()
    with redis.Redis.from_url(url_of(guarded, "agent-staging", STAGING)) as client:
        assert client.ping()


def test_a_new_file_adds_an_environment_and_leaves_connections_open(
    guarded: str, agent_url: str, profile: str
) -> None:
    """``ACL LOAD``: pods of the new environment log in, and no pod that is connected notices it."""
    staging = url_of(guarded, "agent-staging", STAGING)
    with (
        redis.Redis.from_url(url_of(guarded, "keeper", KEEPER)) as keeper,
        redis.Redis.from_url(agent_url, single_connection_client=True) as pod,
    ):
        file = Path(keeper.config_get("aclfile")["aclfile"])
        text, connection = file.read_text(), pod.client_id()
        renewed = text.replace(sha256(AGENT.encode()).hexdigest(), sha256(b"renewed").hexdigest())
        without = "".join(line for line in renewed.splitlines(True) if "agent-staging" not in line)
        file.write_text(without)
        keeper.execute_command("ACL", "LOAD")
        try:
            for url in (staging, agent_url):
                with redis.Redis.from_url(url) as client, pytest.raises(redis.AuthenticationError):
                    client.ping()
            assert pod.client_id() == connection
        finally:
            file.write_text(text)
            keeper.execute_command("ACL", "LOAD")
        with redis.Redis.from_url(staging) as client:
            assert client.ping()
        assert pod.client_id() == connection


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
            tasks.keep_redis_ready,
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


def test_backlogs_are_read_and_their_dead_jobs_returned(configured: str, guarded: str) -> None:
    with redis.Redis.from_url(url_of(guarded, "keeper", KEEPER)) as client:
        store = BacklogStore(client, environment=configured, dependency="openai")
        store.submit("a", max_tries=1)
        (job,) = store.take(1).jobs
        store.end(job["id"], job["fence"], "dead", cause="why")
        assert measure_backlogs(configured) == 1
        assert [one.cause for one in read_dead(configured, "openai").listed] == ["why"]
        assert return_dead_jobs(dependency="openai", until=None, **COMMON).number == 1
        assert set(store.ordered("ready")) == {"a"}
        store.cancel("a")


def test_the_doctor_finds_nothing_wrong(
    configured: str, agent_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from fuseboard.cli import main

    monkeypatch.setenv("FUSEBOARD_REDIS_URL", agent_url)
    monkeypatch.setenv("FUSEBOARD_STATE_DIR", "off")
    monkeypatch.delenv("FUSEBOARD_URL", raising=False)
    main(["doctor", "--json"])
    findings = json.loads(capsys.readouterr().out)["findings"]
    failed = {finding["check"]: finding["says"] for finding in findings if finding["level"] == "fail"}
    # The duration shows how busy this machine is.
    assert failed.keys() <= {"latency"}, failed
    statuses = {finding["check"]: finding["level"] for finding in findings}
    assert statuses["scripts"] == statuses["configuration"] == statuses["default user"] == "ok"


@pytest.mark.parametrize("command", REFUSED_TO_AGENTS, ids=" ".join)
def test_a_pod_may_not(agent_url: str, command: tuple[str, ...]) -> None:
    with redis.Redis.from_url(agent_url) as client, pytest.raises(redis.ResponseError) as error:
        client.execute_command(*command)
    assert re.search("permission|NOPERM|ACL failure", str(error.value)), str(error.value)


def test_the_control_plane_reads_the_load_of_the_server(control_url: str) -> None:
    [node] = read_nodes(control_url)
    assert (node.up, node.role) == (True, "primary")


REFUSED_TO_CONTROL = [
    command
    for command in REFUSED_TO_AGENTS
    if command[0] in ("FLUSHALL", "FLUSHDB", "CONFIG", "ACL", "KEYS", "SHUTDOWN", "MONITOR")
    or command[1:2] == ("anything",)
    or command[0] in ("EVAL", "EVAL_RO")
    or command[:2] in (("FUNCTION", "DELETE"), ("FUNCTION", "FLUSH"), ("SCRIPT", "FLUSH"))
] + [("SUBSCRIBE", "elsewhere"), ("DEL", "celery")]


@pytest.mark.parametrize("command", REFUSED_TO_CONTROL, ids=" ".join)
def test_the_control_plane_may_not(control_url: str, command: tuple[str, ...]) -> None:
    with redis.Redis.from_url(control_url) as client, pytest.raises(redis.ResponseError) as error:
        client.execute_command(*command)
    assert re.search("permission|NOPERM|ACL failure", str(error.value)), str(error.value)


#: What a script of a pod could do, with whatever right it was started.
FOREIGN = [
    ("return redis.call('SET', KEYS[1], 'x')", "1", keys.config_head("production")),
    ("return redis.call('GET', 'anything')", "0"),
    ("return redis.call('FLUSHALL')", "0"),
    ("return redis.call('SET', ARGV[1], 'x')", "0", keys.breaker("staging", "openai")),
]


@pytest.mark.parametrize("script", FOREIGN, ids=lambda script: script[0])
def test_a_script_of_a_pod_may_not_do_more_than_the_pod(
    agent_url: str, control_url: str, profile: str, script: tuple[str, ...]
) -> None:
    text, *arguments = script
    with redis.Redis.from_url(control_url) as control:
        control.script_load(text)
    sha = sha1(text.encode(), usedforsecurity=False).hexdigest()
    with redis.Redis.from_url(agent_url) as client, pytest.raises(redis.ResponseError) as error:
        client.execute_command("EVALSHA", sha, *arguments)
    assert re.search("permission|NOPERM|ACL failure", str(error.value)), str(error.value)


LOOP = "while true do end"


@only(redis_acl.HARDENED)
def test_finding_8_a_pod_cannot_start_a_script_that_loops_in_the_profile_hardened(
    agent_url: str, control_url: str, profile: str
) -> None:
    with redis.Redis.from_url(control_url) as control:
        # Even one that somebody else has loaded.
        control.script_load(LOOP)
    sha = sha1(LOOP.encode(), usedforsecurity=False).hexdigest()
    for command in (
        ("EVAL", LOOP, 0),
        ("EVAL_RO", LOOP, 0),
        ("EVALSHA", sha, 0),
        ("EVALSHA_RO", sha, 0),
        ("SCRIPT", "LOAD", LOOP),
        ("FUNCTION", "LOAD", f"#!lua name=x\nredis.register_function('x', function() {LOOP} end)"),
        ("FCALL_RO", SCRIPTS[0].function, 0),
    ):
        with redis.Redis.from_url(agent_url) as client, pytest.raises(NoPermissionError):
            client.execute_command(*command)


@only(redis_acl.STANDARD)
def test_finding_8_the_control_plane_kills_a_script_that_loops_in_the_profile_standard(
    configured: str, agent_url: str, control_url: str, profile: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = killed()
    with ThreadPoolExecutor(1) as pool:
        rogue = pool.submit(start_loop, agent_url)
        wait_until(lambda: is_busy(control_url))
        # As every two seconds. The pooled connections of this process would not help a new worker.
        tasks.keep_redis_ready()
        assert "killed by user" in str(rogue.exception(timeout=30)).lower()
    assert killed() == before + 1
    assert not is_busy(control_url)


def start_loop(url: str) -> None:
    with redis.Redis.from_url(url, socket_timeout=30) as client:
        client.evalsha(client.script_load(LOOP), 0)


def is_busy(url: str) -> bool:
    with redis.Redis.from_url(url, driver_info=None, socket_timeout=5) as client:
        try:
            client.ping()
        except redis.ResponseError as error:
            return str(error).startswith("BUSY")
    return False


def killed() -> float:
    return tasks.blocked.labels("killed")._value.get()


@only(redis_acl.HARDENED)
def test_finding_8_hardened_pods_wait_for_their_functions_and_find_them_again_after_a_loss(
    configured: str, agent_url: str, guarded: str, profile: str, tmp_path: Path
) -> None:
    url = StoreUrl.parse(agent_url)
    with redis.Redis.from_url(url_of(guarded, "keeper", KEEPER)) as keeper, asyncio.Runner() as runner:
        keeper.function_flush()
        with pytest.raises(
            ConnectionRefusedError, match=r"fuseboard_admit_\w+ is missing.*FUSEBOARD_ACL_PROFILE"
        ):
            runner.run(open_pipe(url, url.addresses[0], lambda *_: None))
        tasks.keep_redis_ready()
        names = str(keeper.function_list())
        assert all(names.count(script.function) == 2 for script in SCRIPTS)
        store = open_store(agent_url)
        runner.run(store.connect())
        try:
            keeper.function_flush()
            reply = runner.run(asked(store))
            assert "Function not found" in str(reply)
            runner.run(eventually(lambda: not store.connected))
            tasks.keep_redis_ready()
            runner.run(store.connect())
            assert isinstance(runner.run(asked(store)), bytes)
        finally:
            runner.run(store.close())


@only(redis_acl.HARDENED)
def test_a_pod_finds_the_way_to_call_scripts_when_its_rights_change(
    configured: str, agent_url: str, guarded: str, tmp_path: Path
) -> None:
    with redis.Redis.from_url(url_of(guarded, "keeper", KEEPER)) as keeper, asyncio.Runner() as runner:
        store = open_store(agent_url)
        runner.run(store.connect())
        try:
            for command in ("SCRIPT", "FUNCTION", "SCRIPT", "FUNCTION"):
                by_function = command == "FUNCTION"
                rights = (
                    ("-evalsha", "-script", "+fcall")
                    if by_function
                    else ("-fcall", "+evalsha", "+script|load")
                )
                keeper.execute_command("ACL", "SETUSER", "agent-production", *rights)
                assert "NOPERM" in str(runner.run(asked(store)))
                runner.run(eventually(lambda: not store.connected))
                runner.run(store.connect())
                assert isinstance(runner.run(asked(store)), bytes), command
        finally:
            runner.run(store.close())


async def asked(store: Store) -> object:
    """The reply to a question without limits."""
    future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    question = msgspec.msgpack.encode([0, "token", 0, 0])
    store.run(ADMIT, (keys.tenant_quota("production", "acme", "q").encode(),), (question,), future.set_result)
    return await future
