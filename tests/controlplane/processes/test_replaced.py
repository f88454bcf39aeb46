"""Processes of the last release and of this one, replaced under calls and edits: nobody notices.

``make faults`` plays the whole: with a migration, 10,000 calls and 50 edits, and the same backwards.
"""

from pathlib import Path

import pytest

from tests.controlplane.processes.replacing import formation, last_release, start, upgrade


@pytest.mark.timeout(600)
def test_processes_of_the_last_release_are_replaced_and_nobody_notices(tmp_path: Path) -> None:
    before = last_release()
    with formation(tmp_path, setup=before, fresh=False) as world:
        start(world, before, limit=900)
        upgrade(world, before, calls=1_000, edits=10, migrate=False)
        assert not list(world.problems()), str(world.figures)
