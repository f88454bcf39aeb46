"""Two releases side by side, on stores of their own."""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from controlplane.installation import FOLDER as PROJECT
from tests.faults.field import Broken, Field
from tests.faults.matrix import row


@row("39", "releases-replaced")
def releases_replaced(field: Field) -> str:
    """The last release is migrated and replaced by this one in the documented order, and back in reverse.
    Then all processes of the control plane are replaced at the same time, as Helm does, and back.

    Each way has 10,000 calls of one limit and 50 edits: no call over the limit, none that fails, no edit lost
    or doubled, no two contents of one revision, and no message to a person.
    """
    with TemporaryDirectory(dir=field.folder, prefix="releases-") as name:
        # Postgres may run as another user.
        Path(name).chmod(0o755)
        done = subprocess.run(
            [sys.executable, "-m", "tests.faults.releases", name],
            cwd=PROJECT,
            env=field.variables,
            capture_output=True,
            text=True,
        )
    if done.returncode:
        raise Broken(done.stdout or done.stderr[-2_000:])
    return done.stdout
