"""The folder of one gateway in ``FUSEBOARD_ONCALL_DIR``, which gateways of one machine may share.

It has the plans for the time without Postgres, and the journal of what was sent. A gateway locks its folder
while it runs. One that begins takes its own, or one that another gateway has left: a container that is made
anew has a new name, and must hand in what the one before has sent.
"""

import fcntl
import os
import re
from io import FileIO
from pathlib import Path

import structlog

from controlplane.alerts.emergency.plan_files import has_plans, make_private

JOURNAL = "journal.json"
_LOCK = "lock"

log = structlog.get_logger(__name__)


class GatewayFolder:
    """A folder that no other gateway has. ``path``: where it is."""

    def __init__(self, place: Path, gateway: str) -> None:
        name = re.sub(r"[^A-Za-z0-9.-]", "_", gateway)
        self.path, self._lock = _take(place, name)
        if self.path.name != name:
            log.info("oncall.folder_taken_over", folder=self.path.name, gateway=gateway)

    def release(self) -> None:
        """Leave it to another gateway."""
        if self._lock is not None:
            self._lock.close()


def _take(place: Path, name: str) -> tuple[Path, FileIO | None]:
    own = place / name
    try:
        others = sorted(path for path in place.iterdir() if path != own and _is_of_gateway(path))
    except OSError:
        others = []
    # Its own goes before those that others have left; without a free one, it makes a new one.
    known = [own, *others] if own.is_dir() else [*others, own]
    # The name may be taken, by a gateway that found it left.
    numbered = (place / f"{name}.{number}" for number in range(2, 100))
    for path in (*known, *numbered):
        try:
            lock = _locked(path)
        except OSError as error:
            if path in others:
                # Another user has it.
                continue
            # Each later write there logs it again, as an error.
            log.warning("oncall.folder_not_locked", folder=str(path), error=str(error))
            return own, None
        if lock is not None:
            return path, lock
    raise RuntimeError(f"{place} has a hundred folders of gateways that run")


def _is_of_gateway(folder: Path) -> bool:
    """Root could take any other one, such as lost+found of a volume."""
    try:
        return (folder / _LOCK).exists() or (folder / JOURNAL).exists() or has_plans(folder)
    except OSError:
        return False


def _locked(path: Path) -> FileIO | None:
    """The lock of this folder; ``None`` while another gateway has it. Raises ``OSError``."""
    make_private(path)
    lock = FileIO(path / _LOCK, "w", opener=lambda file, flags: os.open(file, flags, 0o600))
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    except OSError:
        lock.close()
        raise
    return lock
