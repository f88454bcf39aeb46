"""However a demo ends, nothing of it is left."""

import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import migrated
from tests.waiting import wait_until
from tools.demo.data_dir import MARK
from tools.demo.scenario import PODS

PROJECT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
    # A demo starts a dozen processes, and itself waits up to a minute for each: on a busy machine they start
    # later than the usual limit of a test.
    pytest.mark.timeout(400),
]


def test_nothing_is_left_of_a_demo_that_is_terminated(tmp_path):
    with demo_running(tmp_path) as demo:
        said = until_it_runs(demo)
        mark = mark_of_child(demo.pid)
        assert len(marked(mark)) > 9, said
        assert handles(demo.pid, signal.SIGINT)
        assert (tmp_path / "pod.env").exists()
        demo.send_signal(signal.SIGTERM)
        demo.wait(120)
    nothing_is_left(mark)
    assert not (tmp_path / "pod.env").exists(), "its addresses answer no longer"


def test_nothing_is_left_of_a_light_demo_that_is_killed(tmp_path):
    with demo_running(tmp_path, "--light") as demo:
        assert "No pod runs" in until_it_runs(demo)
        mark = mark_of_child(demo.pid)
        assert {log.stem for log in (tmp_path / "logs").iterdir()} >= {"web", "gateway", "worker", "beat"}
        assert not {"vendor", "load", *PODS} & {log.stem for log in (tmp_path / "logs").iterdir()}
        assert decide((tmp_path / "pod.env").read_text()) == "True shared"
        assert "running" in a_second_demo_says(tmp_path)
        demo.kill()
        demo.wait(60)
    nothing_is_left(mark)


@contextmanager
def demo_running(folder, *options):
    migrated.copy_into(folder / "postgres")
    demo = subprocess.Popen(
        # As a script starts it in the background: with SIGINT ignored.
        ["/bin/sh", "-c", "trap '' INT; exec \"$@\"", "sh", sys.executable, "manage.py", "demo", *options],
        cwd=PROJECT,
        env=os.environ | {"FUSEBOARD_DATA_DIR": str(folder)},
        stdout=subprocess.PIPE,
        text=True,
    )
    with demo:
        try:
            yield demo
        finally:
            demo.kill()  # otherwise leaving the block would wait forever


def nothing_is_left(mark):
    wait_until(lambda: marked(mark), "the end of every process", accept=lambda left: not left, every_s=0.05)


def decide(environment):
    """What a pod with these variables decides, and in which mode."""
    script = (
        "from fuseboard import blocking; agent = blocking.from_env(); "
        "print(agent.admit_request('acme').allowed, agent.mode)"
    )
    variables = dict(line.split("=", 1) for line in environment.splitlines())
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {name: value.strip("'") for name, value in variables.items()},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.strip()


def a_second_demo_says(folder):
    second = subprocess.run(
        [sys.executable, "manage.py", "demo"],
        cwd=PROJECT,
        env=os.environ | {"FUSEBOARD_DATA_DIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert second.returncode == 1
    return second.stderr


def until_it_runs(demo):
    said = ""
    for line in demo.stdout:
        said += line
        if "Stop with Ctrl-C" in line:
            return said
    raise AssertionError(f"the demo ended with {demo.wait()}: {said}")


def handles(process, number):
    """Whether a process has a handler for a signal."""
    status = Path(f"/proc/{process}/status").read_text()
    caught = int(re.search(r"^SigCgt:\s*(\w+)$", status, re.MULTILINE).group(1), 16)
    return bool(caught >> (number - 1) & 1)


def mark_of_child(parent):
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    environment = Path(f"/proc/{children[0]}/environ").read_bytes()
    return re.search(rf"{MARK}=\w+".encode(), environment).group()


def marked(mark):
    """Command lines of live processes with the mark in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:  # it ended during the search
            continue
    return found
