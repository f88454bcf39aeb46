"""Records what clients depend on: ``python -m tests.contract.compat.record [COMMIT]``, by default v0.1.0.

Unpacks the commit into a temporary folder and runs its own code there, on embedded servers of its own.
"""

import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.contract.compat import agent_side
from tests.contract.compat.compare import RECORD
from tests.contract.compat.processes import serving
from tests.contract.compat.release import FIRST, ROOT, python_path, unpack
from tests.contract.compat.text import pretty

_MODULE = "tests.contract.compat.record"
#: Each has servers of its own, so that its database is empty at first.
_PARTS = ("surfaces", "stored")
_KEY = "only signs what the recorder asks, on one machine"


def take(commit: str) -> None:
    """Replace the record by what this commit does."""
    with tempfile.TemporaryDirectory(prefix="fuseboard-record-") as folder:
        root = unpack(Path(folder) / "source", commit)
        environment = {name: value for name, value in os.environ.items() if "FUSEBOARD" not in name}
        environment.pop("DATABASE_URL", None)
        # Its own code first; of this checkout only what records.
        environment |= {
            "PYTHONPATH": python_path(root, root / "agents", ROOT),
            "FUSEBOARD_SECRET_KEY": _KEY,
            "FUSEBOARD_LOG_LEVEL": "ERROR",
            "FUSEBOARD_DATA_DIR": str(Path(folder) / "data"),
        }
        for part in _PARTS:
            command = [sys.executable, "-m", _MODULE, part, str(Path(folder) / part)]
            subprocess.run(command, cwd=root, env=environment, check=True)


def record_here(part: str, folder: Path) -> None:
    """In the old version's folder, with its code imported."""
    root = Path.cwd()
    import fuseboard

    assert Path(fuseboard.__file__).is_relative_to(root), "another version's agent was imported"
    from controlplane import embedded

    with embedded.running(folder=folder / "servers", forgetful=True):
        os.environ["DJANGO_SETTINGS_MODULE"] = "controlplane.settings"
        import django

        django.setup()
        found = _surfaces(root, folder) if part == "surfaces" else _stored()
    RECORD.mkdir(exist_ok=True)
    for name, value in found.items():
        file = RECORD / (name if isinstance(value, str) else f"{name}.json")
        file.write_text(value if isinstance(value, str) else pretty(value) + "\n")
        sys.stdout.write(f"{file.relative_to(ROOT)}\n")


def _surfaces(root: Path, folder: Path) -> dict[str, Any]:
    from tests.contract.compat import control_side

    looks = agent_side.SURFACES | control_side.SURFACES
    return {name: look(root) for name, look in looks.items()} | _observe(root, folder)


def _stored() -> dict[str, Any]:
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    from tests.contract.compat.stored import stored

    return {"stored": stored()}


def _observe(root: Path, folder: Path) -> dict[str, Any]:
    from django.core.management import call_command

    from tests.contract.compat.served import ControlPlane, observe

    def said(*command: str) -> str:
        out = io.StringIO()
        call_command(*command, stdout=out)
        return out.getvalue().strip()

    said("migrate")
    said("create_environment", "production")
    api_token = said("create_api_token", "recorder", "--role", "admin")
    agent_token = said("create_agent_token", "pods")
    database = os.environ["DATABASE_URL"]
    with (
        serving(root, os.environ, folder / "logs") as (web, gateway),
        ControlPlane(web, gateway, api_token, agent_token, _KEY, database) as plane,
    ):
        return observe(plane)


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in _PARTS:
        record_here(sys.argv[1], Path(sys.argv[2]))
    else:
        take(sys.argv[1] if len(sys.argv) > 1 else FIRST.commit)
