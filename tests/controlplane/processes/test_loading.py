"""A process searches for garbage again once its code is loaded, and then not among that code."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
#: Objects of Django and the applications. A process that loads none has about 5,000.
LOADED = 50_000
_REPORT = "print(gc.isenabled(), gc.get_freeze_count())"
_COMMAND = f"""
import atexit, gc
from controlplane.management.commands_loaded import Commands
atexit.register(lambda: {_REPORT})
Commands(["manage.py", "{{command}}", "--help"]).execute()
"""
_WORKER = f"""
import gc, sys
sys.argv = ["/usr/bin/celery", "-A", "controlplane", "worker"]
from celery.app.utils import find_app
from celery.signals import celeryd_init
app = find_app("controlplane")
app.loader.init_worker()
print(gc.isenabled())
celeryd_init.send(sender="worker", instance=None, conf=app.conf, options={{}})
{_REPORT}
"""


def lines_of(script: str) -> list[str]:
    variables = {"DJANGO_SETTINGS_MODULE": "controlplane.settings"}
    command = [sys.executable, "-c", script]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | variables, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize("command", ["web", "gateway", "migrate"])
def test_a_command_begins_with_its_code_left_out_of_the_search(command: str) -> None:
    enabled, kept = lines_of(_COMMAND.format(command=command))[-1].split()
    assert enabled == "True"
    assert int(kept) > LOADED


def test_a_worker_of_celery_searches_once_its_tasks_are_loaded() -> None:
    *_, loading, loaded = lines_of(_WORKER)
    assert loading == "False"
    enabled, kept = loaded.split()
    assert enabled == "True"
    assert int(kept) > LOADED


def test_code_that_cannot_be_loaded_leaves_the_search_on() -> None:
    script = "\n".join(
        [
            "import gc",
            "from controlplane.loading import loading",
            "try:",
            "    with loading():",
            "        print(gc.isenabled())",
            "        import no_such_module",
            "except ImportError:",
            "    print(gc.isenabled())",
        ]
    )
    assert lines_of(script) == ["False", "True"]
