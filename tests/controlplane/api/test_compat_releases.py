"""Pods and control planes of neighbouring versions work together, so that neither has to be updated first."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import permutations
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis

from controlplane import redis_acl
from controlplane.fleet.older_agents import unenforced_words
from tests.contract.compat import release
from tests.contract.compat.processes import EVERY_S, WITHIN_S, serving
from tests.contract.compat.served import ControlPlane
from tests.controlplane.web_process import database_url
from tests.waiting import wait_until

#: A test starts up to six processes of four versions, and waits a minute for each at most.
pytestmark = pytest.mark.timeout(400)

REASON = "to see both versions at work"
TENANT, OTHER, DEPENDENCY = "acme", "umbrella", "payments-api"
#: No tier has a quota of this name. A pod decides the first request of a tenant by the default tier if the
#: tenant's record arrives too late. Agents before this one then read the counter of a quota that both have,
#: and that another rule has written, as spent for the whole window.
QUOTA = "orders"
LIMIT, RAISED = 3, 5
#: Agents from before counters were carried from one rule to another.
EARLIER = "239105b8"
SHARED_LIMIT = 60
CONFIGURATION = f"""
tuning: {{store_deadline_us: 50000}}
dependencies:
  {DEPENDENCY}: {{kind: external}}
tenants:
  {OTHER}: {{tier: enterprise}}
  {TENANT}:
    tier: pro
    quotas:
      {QUOTA}: {{limit: {LIMIT}, window_s: 3600, algorithm: sliding_window}}
"""

#: Prepares a database with the code of the version that runs it.
SETUP = """
import django, io
django.setup()
from django.core.management import call_command
def said(*command):
    out = io.StringIO()
    call_command(*command, stdout=out)
    return out.getvalue().strip()
said("migrate", "--verbosity", "0")
said("create_environment", "production")
print(said("create_api_token", "test", "--role", "admin"))
print(said("create_agent_token", "pods"))
"""


releases = pytest.mark.parametrize("earlier", release.SUPPORTED, ids=str)


#: This configuration is for agents that count money. The requests and calls of these pods state none.
WITH_BUDGETS = f"""
accounts:
  main: {{pools: [{DEPENDENCY}]}}
budgets:
  main-month: {{account: main, amount: 50000000000, period: month}}
  acme-day: {{tenant: {TENANT}, amount: 1, period: day}}
"""


#: No earlier release answers Envoy.
WITH_RULES_FOR_ENVOY = f"""
descriptors:
  edge:
    file: |
      domain: edge
      headers: on
      descriptors:
        - {{key: cluster, dependency: {DEPENDENCY}}}
        - {{key: path, rate_limit: {{unit: minute, requests_per_unit: 5}}, accepts_override: 50}}
"""


class Pod:
    """A process with an agent in it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.agent = Path(self._answer()["agent"])

    def ask(self, kind: str, name: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{kind} {name}\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the pod ended"
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def pod_running(
    agent: Path, plane: ControlPlane, redis_url: str, folder: Path, server: str = "pod-1"
) -> Iterator[Pod]:
    """A pod that imports its agent from the folder ``agent``."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FUSEBOARD_")}
    environment |= {
        "PYTHONPATH": str(agent),
        "FUSEBOARD_URL": plane.gateway,
        "FUSEBOARD_TOKEN": plane.agent_token,
        "FUSEBOARD_REDIS_URL": redis_url,
        "FUSEBOARD_SERVER": server,
        "FUSEBOARD_STATE_DIR": str(folder / "state"),
    }
    with subprocess.Popen(
        [sys.executable, str(release.ROOT / "tests/contract/compat/pod.py")],
        cwd=folder,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            pod = Pod(process)
            assert pod.agent.is_relative_to(agent), "another version's agent was imported"
            yield pod
        finally:
            process.stdin.close()  # type: ignore[union-attr]
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
    assert process.returncode == 0


@contextmanager
def control_plane_of(root: Path, database: str, folder: Path) -> Iterator[ControlPlane]:
    """Web and gateway of the version in ``root``, on an empty database."""
    environment = os.environ | {
        "DATABASE_URL": database,
        "DJANGO_SETTINGS_MODULE": "controlplane.settings",
        "PYTHONPATH": release.python_path(root, root / "agents"),
        "FUSEBOARD_DATA_DIR": str(folder),
        "FUSEBOARD_LOG_LEVEL": "ERROR",
    }
    made = subprocess.run(
        [sys.executable, "-c", SETUP], cwd=root, env=environment, check=True, capture_output=True, text=True
    )
    api_token, agent_token = made.stdout.split()
    with (
        serving(root, environment, folder / "logs") as (web, gateway),
        ControlPlane(web, gateway, api_token, agent_token, "", database) as plane,
    ):
        yield plane


@pytest.fixture
def empty_database(transactional_db: Any) -> Iterator[str]:
    """A separate database, which the present migrations have not changed."""
    url = database_url()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS compat")
        connection.execute("CREATE DATABASE compat")
        yield url.rpartition("/")[0] + "/compat"
        connection.execute("DROP DATABASE compat WITH (FORCE)")


@pytest.fixture
def restricted_url(limits: redis.Redis, redis_url: str) -> Iterator[str]:
    """Redis for pods, with the rights that the default ACL profile gives them."""
    password = "a-password-of-one-test"
    user, _, selector = redis_acl.agent_user("production", password).partition(" (")
    _, name, *rules = user.split()
    limits.execute_command("ACL", "SETUSER", name, *rules, f"({selector}")
    yield re.sub(r"//[^@]*@", f"//{name}:{password}@", redis_url)
    limits.execute_command("ACL", "DELUSER", name)


@releases
def test_the_agent_of_an_earlier_release_works_with_this_control_plane(
    earlier: release.Release, plane: ControlPlane, restricted_url: str, tmp_path: Path
) -> None:
    with pod_running(release.installed(earlier.commit), plane, restricted_url, tmp_path) as pod:
        they_work_together(plane, pod, override="hold" if earlier == release.FIRST else "override")


@releases
def test_this_agent_works_with_the_control_plane_of_an_earlier_release(
    earlier: release.Release, empty_database: str, limits: redis.Redis, redis_url: str, tmp_path: Path
) -> None:
    agent = release.ROOT / "agents"
    with (
        control_plane_of(release.source(earlier.commit), empty_database, tmp_path) as plane,
        pod_running(agent, plane, redis_url, tmp_path) as pod,
    ):
        they_work_together(plane, pod, override="override")


def test_pods_of_four_versions_share_counters(
    plane: ControlPlane, restricted_url: str, tmp_path: Path
) -> None:
    """Together they spend a limit exactly. After another algorithm or window, never more than it."""
    plane.apply(CONFIGURATION.encode())
    released = [release.installed(earlier.commit) for earlier in release.SUPPORTED]
    between = release.source(EARLIER) / "agents"
    with ExitStack() as stack:
        pods = []
        for number, agent in enumerate((*released, between, release.ROOT / "agents")):
            folder = tmp_path / f"pod-{number}"
            folder.mkdir()
            pods.append(stack.enter_context(pod_running(agent, plane, restricted_url, folder)))
        for number, rules in enumerate(CHANGES):
            tenant = f"tenant-{number}"
            create = {"key": tenant, "tier": "pro", "reason": REASON}
            plane.call("POST", "production/tenants", create)
            set_quota(plane, pods, tenant, rules[0])
            first = spend(pods, tenant, SHARED_LIMIT // 2)
            set_quota(plane, pods, tenant, rules[1])
            rest = spend(pods, tenant, 2 * SHARED_LIMIT)
            spent, unsure = first["allowed"] + rest["allowed"], first["unsure"] + rest["unsure"]
            assert first["allowed"] >= SHARED_LIMIT // 2 - unsure, (rules, first)
            assert spent <= SHARED_LIMIT + unsure, (rules, first, rest)
            if rules[0] == rules[1]:
                assert spent >= SHARED_LIMIT - unsure, (rules, first, rest)


@pytest.mark.parametrize("commit", [release.FIRST.commit, EARLIER])
def test_older_pods_decide_as_before_under_accounts_and_budgets_and_are_named(
    plane: ControlPlane, restricted_url: str, tmp_path: Path, commit: str
) -> None:
    """Case L8: a budget of 50,000 USD a month is accepted while pods of version 0.1.0 are in the fleet."""
    agent = release.source(commit) / "agents"
    plane.apply((CONFIGURATION + WITH_BUDGETS).encode())
    folder = tmp_path / "new"
    folder.mkdir()
    with (
        pod_running(agent, plane, restricted_url, tmp_path, "old-1") as old,
        pod_running(release.ROOT / "agents", plane, restricted_url, folder, "new-1") as new,
    ):
        for pod in (old, new):
            the_configuration_arrives(plane, pod)
        the_limit_is_enforced(old, LIMIT, Counter[str]())
        for pod in (old, new):
            assert pod.ask("call", DEPENDENCY)["allowed"]
        said = "1 of 2 pods does not enforce budgets: their agents are older (old-1). Update them."
        wait_until(
            lambda: unenforced_words("production"),
            within_s=WITHIN_S,
            every_s=EVERY_S,
            accept=lambda words: words == said,
        )


@releases
def test_older_pods_decide_as_before_under_rules_for_envoy(
    earlier: release.Release, plane: ControlPlane, restricted_url: str, tmp_path: Path
) -> None:
    plane.apply((CONFIGURATION + WITH_RULES_FOR_ENVOY).encode())
    with pod_running(release.installed(earlier.commit), plane, restricted_url, tmp_path) as pod:
        the_configuration_arrives(plane, pod)
        the_limit_is_enforced(pod, LIMIT, Counter[str]())
        assert pod.ask("call", DEPENDENCY)["allowed"]


HOUR = {"limit": SHARED_LIMIT, "window_s": 3600, "burst": 1, "failure_policy": "fail_closed"}
WINDOW = HOUR | {"algorithm": "sliding_window"}
BUCKET = HOUR | {"algorithm": "token_bucket", "burst": SHARED_LIMIT}
MONTH = HOUR | {"algorithm": "fixed_window", "period": "month"}
#: The rule of a quota, and the next one.
CHANGES = [
    *((rule, rule) for rule in (WINDOW, BUCKET, MONTH)),
    *permutations((WINDOW, BUCKET, MONTH), 2),
    (WINDOW, WINDOW | {"window_s": 7200}),
    (WINDOW | {"window_s": 7200}, WINDOW),
    (BUCKET, BUCKET | {"window_s": 7200}),
]


def set_quota(plane: ControlPlane, pods: list[Pod], tenant: str, rule: dict[str, Any]) -> None:
    version = plane.call("GET", f"production/tenants/{tenant}").json()["version"]
    edit = rule | {"reason": REASON, "expected_version": version}
    plane.call("PUT", f"production/tenants/{tenant}/quotas/{QUOTA}", edit)
    for pod in pods:
        the_configuration_arrives(plane, pod)


def spend(pods: list[Pod], tenant: str, requests: int) -> Counter[str]:
    """The pods in turn ask for so many requests, each of which is allowed or refused by the quota.

    Redis may answer too late on a busy machine, and may have charged the request or not: it is ``unsure``.
    """
    found = Counter[str]()
    for number in range(requests):
        pod = pods[number % len(pods)]
        answer = pod.ask("request", tenant)
        refusal = answer["reason"], answer["rule"]
        assert refusal in {("", ""), ("quota", QUOTA), ("store_unavailable", QUOTA)}, (pod.agent, answer)
        count(answer, found)
    return found


def count(answer: dict[str, Any], found: Counter[str]) -> None:
    """Add a request to those that the quota allowed, and to those that may have been charged or not."""
    found["allowed"] += answer["allowed"] and QUOTA in answer["limits"]
    late = answer["local"] or answer["reason"] == "store_unavailable"
    found["unsure"] += late or (answer["allowed"] and QUOTA not in answer["limits"])


def test_a_clone_without_that_version_is_a_failure_in_continuous_integration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CI", "1")
    with pytest.raises(pytest.fail.Exception, match="git fetch --unshallow"):
        release.need_history("0" * 40)
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception, match="git fetch --unshallow"):
        release.need_history("0" * 40)


def they_work_together(plane: ControlPlane, pod: Pod, *, override: str) -> None:
    """``override`` is the command of the agent's version."""
    plane.apply(CONFIGURATION.encode())
    the_configuration_arrives(plane, pod)
    spent = Counter[str]()
    the_limit_is_enforced(pod, LIMIT, spent)

    quota = {"limit": RAISED, "window_s": 3600, "burst": 1, "algorithm": "sliding_window", "reason": REASON}
    version = plane.call("GET", f"production/tenants/{TENANT}").json()["version"]
    quota["expected_version"] = version
    plane.call("PUT", f"production/tenants/{TENANT}/quotas/{QUOTA}", quota)
    the_configuration_arrives(plane, pod)
    the_limit_is_enforced(pod, RAISED, spent)

    assert pod.ask("call", DEPENDENCY)["allowed"]
    ctl(plane, pod, override, DEPENDENCY, "--mode", "forced_open", "--for", "10m")
    # In force at once: the override is in Redis when the API has answered.
    refused = wait_until(lambda: _by_redis(pod.ask("call", DEPENDENCY)), within_s=WITHIN_S)
    assert (refused["allowed"], refused["reason"]) == (False, "forced_open")
    ctl(plane, pod, "end", DEPENDENCY)
    wait_until(lambda: pod.ask("call", DEPENDENCY)["allowed"], within_s=WITHIN_S, every_s=EVERY_S)
    the_control_plane_knows_what_the_pod_applied(plane)


def ctl(plane: ControlPlane, pod: Pod, *command: str) -> None:
    """``fuseboard ctl`` of the agent's version."""
    environment = os.environ | {
        "PYTHONPATH": str(pod.agent.parents[1]),
        "FUSEBOARD_API_URL": plane.web,
        "FUSEBOARD_API_TOKEN": plane.api_token,
    }
    asked = [sys.executable, "-m", "fuseboard", "ctl", *command, "--reason", REASON]
    subprocess.run(asked, cwd=pod.agent.parents[1], env=environment, check=True)


def the_configuration_arrives(plane: ControlPlane, pod: Pod) -> None:
    """Another tenant asks, so that the limit of the first one is not spent."""
    revision = plane.call("GET", "production/configuration").json()["revision"]
    answer = wait_until(
        lambda: _of_revision(_by_redis(pod.ask("request", OTHER)), revision),
        within_s=WITHIN_S,
        every_s=EVERY_S,
    )
    assert answer["allowed"]


def _of_revision(answer: dict[str, Any] | None, revision: int) -> dict[str, Any] | None:
    return answer if answer and answer["revision"] == revision else None


def _by_redis(answer: dict[str, Any]) -> dict[str, Any] | None:
    """Nothing if the pod decided by itself: on a busy machine Redis may answer after the deadline."""
    return answer if answer["mode"] == "shared" and not answer["local"] else None


def the_limit_is_enforced(pod: Pod, limit: int, spent: Counter[str]) -> None:
    """``spent`` goes on where the last call ended."""
    while (answer := pod.ask("request", TENANT))["allowed"]:
        count(answer, spent)
    assert (answer["reason"], answer["rule"]) == ("quota", QUOTA)
    assert abs(spent["allowed"] - limit) <= spent["unsure"]


def the_control_plane_knows_what_the_pod_applied(plane: ControlPlane) -> None:
    revision = plane.call("GET", "production/configuration").json()["revision"]
    with psycopg.connect(plane.database_url, autocommit=True) as connection:
        row = "SELECT revision, config_status, state, mode FROM fleet_server WHERE name = 'pod-1'"
        expected = (revision, "applied", "online", "shared")
        wait_until(lambda: connection.execute(row).fetchone() == expected, within_s=WITHIN_S, every_s=EVERY_S)
    fleet = plane.call("GET", "production/fleet").json()
    assert (fleet["revision"], fleet["confirmed"], fleet["servers"]) == (revision, 1, 1)
