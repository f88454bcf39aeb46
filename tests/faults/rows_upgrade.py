"""Two releases side by side, on stores of their own."""

from pathlib import Path
from tempfile import TemporaryDirectory

from tests.controlplane.processes.replacing import formation, last_release, roll_back, start, upgrade
from tests.faults.field import Broken, Field
from tests.faults.matrix import row

CALLS, EDITS = 10_000, 50


@row("39", "releases-replaced")
def releases_replaced(field: Field) -> str:
    """The last release is migrated and replaced by this one in the documented order, and back in reverse.

    Each way has 10,000 calls of one limit and 50 edits: no call over the limit, none that fails, no edit lost
    or doubled, no two contents of one revision, and no message to a person.
    """
    with TemporaryDirectory(dir=field.folder, prefix="releases-") as name:
        folder = Path(name)
        # Postgres may run as another user.
        folder.chmod(0o755)
        before = last_release(folder)
        with formation(folder, setup=before, fresh=True) as world:
            start(world, before, limit=2 * CALLS * 9 // 10)
            upgrade(world, before, calls=CALLS, edits=EDITS, migrate=True)
            roll_back(world, before, calls=CALLS, edits=EDITS)
            if found := list(world.problems()):
                raise Broken(f"{'; '.join(found)}; {world.figures}")
            return str(world.figures)
