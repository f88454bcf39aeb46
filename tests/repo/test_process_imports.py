"""A process imports no part of the product that it never runs: these imports were half of its start."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_CELERY = "from celery.app.utils import find_app; find_app('controlplane').loader.init_worker()"
#: Process -> its command, what it imports before it is ready, and what it must not have imported then.
PROCESSES = {
    "gateway": (
        ["manage.py", "gateway"],
        "import django; django.setup(); import controlplane.management.commands.gateway",
        {"ninja", "pydantic", "requests", "dashboard", "controlplane.api.api", "celery"},
    ),
    "worker": (
        ["celery", "-A", "controlplane", "worker"],
        _CELERY,
        {"ninja", "pydantic", "requests", "dashboard", "controlplane.api.api", "controlplane.urls"},
    ),
    "beat": (
        ["celery", "-A", "controlplane", "beat"],
        _CELERY,
        {"ninja", "pydantic", "requests", "dashboard", "django.db.models", "controlplane.alerts", "allauth"},
    ),
}


@pytest.mark.parametrize("process", PROCESSES)
def test_a_process_does_not_import_what_it_never_runs(process: str) -> None:
    command, imports, never = PROCESSES[process]
    script = f"import sys; sys.argv = {command!r}; {imports}; print(*sys.modules)"
    variables = {"DJANGO_SETTINGS_MODULE": "controlplane.settings"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(done.stdout.split())
    assert "controlplane.settings" in loaded
    assert loaded & never == set()


def test_the_worker_knows_every_task_that_beat_sends() -> None:
    """Beat sends names, and does not look whether there is such a task."""
    script = (
        "import sys; sys.argv = ['celery', '-A', 'controlplane', 'worker']\n"
        "from celery.app.utils import find_app\n"
        "app = find_app('controlplane'); app.loader.init_worker()\n"
        "print(*({entry['task'] for entry in app.conf.beat_schedule.values()} - set(app.tasks)))"
    )
    variables = {"DJANGO_SETTINGS_MODULE": "controlplane.settings"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == ""
