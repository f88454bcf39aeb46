"""The gateway of v0.1.0 beside the current one: its code from the history, and a database of its own."""

import io
import os
import subprocess
import sys
import tarfile
import tempfile
from urllib.parse import urlsplit

import psycopg

from control_plane.processes import start
from control_plane.stand import PROJECT, Skip

#: v0.1.0. By its commit, because a clone may not have the tag.
COMMIT = "19feaf9"
DATABASE = "older_gateway"

#: Runs in the old tree, with its own migrations, edit functions and token. Benches were in tests/ there.
_PREPARE = """
import sys
sys.path[:0] = [".", "tests/bench"]
import django
django.setup()
from django.core.management import call_command
call_command("migrate", verbosity=0)
from control_plane.processes import make_token
from control_plane.stand import bench
from controlplane.policies import edits
edits.create_environment(environment="production", reason="a benchmark", actor=bench())
make_token()
"""


def start_older_gateway(stack, environment):
    """The process and its port. Raises `Skip`."""
    tree = stack.enter_context(tempfile.TemporaryDirectory())
    archive = subprocess.run(["git", "archive", COMMIT], cwd=PROJECT, capture_output=True, check=False)
    if archive.returncode:
        raise Skip(f"git has no {COMMIT}: {archive.stderr.decode(errors='replace').strip()}")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(tree, filter="data")
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {DATABASE}")
    environment = environment | {
        "DATABASE_URL": urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{DATABASE}").geturl(),
        # Before the installed code, which is the current one.
        "PYTHONPATH": os.pathsep.join((tree, f"{tree}/agents")),
    }
    subprocess.run([sys.executable, "-c", _PREPARE], cwd=tree, env=environment, check=True)
    return start(stack, ["manage.py", "gateway", "--port", "0"], environment, folder=tree)
