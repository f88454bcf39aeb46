"""Processes under measurement, and their token."""

import http.client
import re
import subprocess
import sys
import time
from hashlib import sha256

import msgspec
import psutil

from control_plane.stand import PROJECT

SECRET = "only-for-this-benchmark"
TOKEN = f"fb_bench_{SECRET}"


def make_token():
    from datetime import UTC, datetime, timedelta

    from controlplane.accounts.models import AgentToken

    AgentToken.objects.get_or_create(
        selector="bench",
        defaults={
            "name": "bench",
            "environment": "production",
            "digest": sha256(SECRET.encode()).hexdigest(),
            "expires_at": datetime.now(UTC) + timedelta(days=1),
        },
    )


def start(stack, command, environment, *, folder=PROJECT):
    """A Python process that prints ``Serving http://...:port/``, killed with the stack; it and its port."""
    process = stack.enter_context(
        subprocess.Popen(
            [sys.executable, *command], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
        )
    )
    stack.callback(process.kill)
    return process, int(re.search(r":(\d+)/", process.stdout.readline())[1])


def wait_until_ready(port, *, within_s=20):
    """The head that the gateway serves, once it does."""
    from fuseboard.contract.sync import SYNC_PATH, SyncRequest, decode_response

    beat = SyncRequest(
        environment="production", service="bench", server="first", boot="boot-0001", sequence=1,
        agent_version="0", leaving=True,
    )  # fmt: skip
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("POST", SYNC_PATH, msgspec.json.encode(beat), headers)
        answer = connection.getresponse()
        document = answer.read()
        connection.close()
        if answer.status == 200:
            return decode_response(document).head
        time.sleep(0.1)
    raise SystemExit("the gateway did not become ready")


def cpu_s(process):
    """CPU seconds of a process and its children so far."""
    found = psutil.Process(process.pid)
    times = [one.cpu_times() for one in (found, *found.children(recursive=True))]
    return sum(one.user + one.system for one in times)
