"""Pods with the rights of both ACL profiles: a script that does not end, and a Redis that returns empty."""

import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import redis as client

from controlplane import redis_acl
from fuseboard.contract.scripts import SCRIPTS
from tests.faults.ends import Pod
from tests.faults.field import CONTROL_PLANE, Broken, Field
from tests.faults.matrix import row
from tests.faults.seen import WORK, Callers

PASSWORD = "a-password-of-one-row"
LOOP = "while true do end"


def _admit(field: Field, profile: str) -> str:
    """Give Redis the user of the pods; return a URL of a pod with that user."""
    line = redis_acl.agent_user("production", PASSWORD, profile).split(" (")
    rules = [*line[0].split()[1:], *(f"({selector}" for selector in line[1:])]
    with client.Redis.from_url(field.valkey.url) as limits:
        limits.execute_command("ACL", "SETUSER", *rules)
    return re.sub(r"//[^@]*@", f"//agent-production:{PASSWORD}@", field.valkey.url)


def _pod(field: Field, profile: str) -> Pod:
    own = field.another_pod(f"{profile}-pod", wait=False)
    own.stop()
    url = re.sub(r":\d+/0$", f":{own.to_redis.port}/0", _admit(field, profile))
    pod = field.another_pod(f"{profile}-pod", environment={"FUSEBOARD_REDIS_URL": url})
    pod.load(WORK, 60)
    field.all_in("shared", pod)
    return pod


def _restart_empty(field: Field, profile: str) -> None:
    field.kill()
    field.valkey.start()
    with client.Redis.from_url(field.valkey.url) as limits:
        limits.flushall()
        limits.function_flush()
    _admit(field, profile)


def _empty(field: Field, profile: str) -> tuple[Pod, int]:
    """Redis restarts empty while no process of the control plane runs."""
    pod = _pod(field, profile)
    head = field.redis_head()
    field.processes.kill(*CONTROL_PLANE)
    pod.figures(begin_anew=True)
    _restart_empty(field, profile)
    return pod, head[1]


def _recover(field: Field, pod: Pod, revision: int) -> str:
    """Start the control plane: everything is as before, and no call has failed."""
    field.processes.begin(*CONTROL_PLANE)
    field.processes.wait_until_ready(CONTROL_PLANE)
    began = time.monotonic()
    field.until("the configuration is back", lambda: field.redis_head()[1:] == [revision], 30)
    field.all_in("shared", pod, *field.pods, within_s=60)
    figures = pod.figures()
    if figures["errors"]:
        raise Broken(f"callers saw exceptions: {figures['errors']}")
    if figures["over_50_ms"]:
        raise Broken(f"{figures['over_50_ms']} of {figures['calls']} calls delayed over 50 ms net")
    took_s = time.monotonic() - began
    return f"all shared {took_s:.1f} s after the control plane, {figures['calls']} calls, 0 errors"


@row("13b", "empty-redis-standard")
def empty_standard(field: Field) -> str:
    """Pods load their scripts themselves, and keep the configuration that they have."""
    pod, revision = _empty(field, redis_acl.STANDARD)
    took_s = field.all_in("shared", pod, within_s=60)
    with client.Redis.from_url(field.valkey.url) as limits:
        if limits.script_exists(*(script.sha for script in SCRIPTS)) != [True] * len(SCRIPTS):
            raise Broken("the pod decides in Redis, which has not got its scripts")
    if field.redis_head() or pod.state()["head"][1] != revision:
        raise Broken(f"Redis has {field.redis_head()}, the pod {pod.state()['head']}")
    return f"shared {took_s:.1f} s after Redis, without a control plane; {_recover(field, pod, revision)}"


@row("13c", "empty-redis-hardened")
def empty_hardened(field: Field) -> str:
    """Pods may load nothing: they decide locally, and say why, until a worker has loaded the functions."""
    pod, revision = _empty(field, redis_acl.HARDENED)
    took_s = field.until("the pod says what is missing", lambda: "is missing" in pod.state()["cause"], 30)
    if pod.state()["mode"] != "local" or pod.state()["head"][1] != revision:
        raise Broken(f"the pod is {pod.state()['mode']} with {pod.state()['head']}, revision {revision}")
    answer = pod.ask("t:acme")
    if not answer["allowed"]:
        raise Broken(f"refused without Redis: {answer}")
    recovered = _recover(field, pod, revision)
    with client.Redis.from_url(field.valkey.url) as limits:
        known = str(limits.function_list())
    if not all(script.function in known for script in SCRIPTS):
        raise Broken(f"functions are missing: {known}")
    return f"local, with its reason, after {took_s:.1f} s; {recovered}"


@row("20", "looping-script")
def looping_script(field: Field) -> str:
    """A pod starts a script that does not end: impossible in ``hardened``, killed in ``standard``."""
    hardened = _admit(field, redis_acl.HARDENED)
    for attempt in (("EVAL", LOOP, 0), ("SCRIPT", "LOAD", LOOP), ("EVALSHA", "0" * 40, 0)):
        with client.Redis.from_url(hardened) as pod:
            try:
                pod.execute_command(*attempt)
            except client.exceptions.NoPermissionError:
                continue
            raise Broken(f"a hardened pod may run {attempt[0]}")
    standard = _admit(field, redis_acl.STANDARD)
    field.load(WORK, 60)
    field.begin_anew()
    beat = field.processes.by_name["beat"].popen
    assert beat is not None
    beat.send_signal(signal.SIGSTOP)
    with client.Redis.from_url(field.valkey.url) as limits, ThreadPoolExecutor(1) as pool:
        limits.config_set("busy-reply-threshold", "200")
        try:
            rogue = pool.submit(_loop, standard)
            took_s = field.all_in("local", within_s=10)
            seen = Callers(field)
            began = time.monotonic()
        finally:
            beat.send_signal(signal.SIGCONT)
        rogue.result(60)
        killed_s = time.monotonic() - began
        limits.config_set("busy-reply-threshold", "5000")
    back_s = field.all_in("shared")
    seen.none_over_50_ms()
    return (
        f"{seen}; local after {took_s:.1f} s, killed {killed_s:.1f} s after beat went on, "
        f"shared {back_s:.1f} s later"
    )


def _loop(url: str) -> None:
    with client.Redis.from_url(url, socket_timeout=90) as pod:
        sha = pod.script_load(LOOP)
        try:
            pod.evalsha(sha, 0)
        except client.ResponseError:
            return
