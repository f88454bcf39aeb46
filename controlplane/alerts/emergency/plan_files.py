"""The plans on disk, one file for each environment, encrypted: URLs of receivers are secrets.

A file is replaced as a whole, so that a process that dies leaves the one before. A file that was changed, or
was written with another ``FUSEBOARD_SECRET_KEY``, is not read.
"""

import os
from pathlib import Path

import structlog
from cryptography.fernet import InvalidToken, MultiFernet
from msgspec import MsgspecError, json

from controlplane.alerts.emergency.plan import EmergencyPlan
from controlplane.encryption import cipher

#: Far more than the most receivers and routes of an environment need.
MAX_BYTES = 256 * 1024
_SALT = "fuseboard.emergency"
_END = ".plan"

log = structlog.get_logger(__name__)


def write_plan(folder: Path, plan: EmergencyPlan) -> None:
    """Raises ``OSError``, also for a plan that is too large."""
    data = _cipher().encrypt(json.encode(plan))
    if len(data) > MAX_BYTES:
        raise OSError(f"the plan of {plan.environment} has {len(data)} bytes, more than {MAX_BYTES}")
    replace(folder / f"{plan.environment}{_END}", data)


def read_plan_files(folder: Path) -> dict[str, EmergencyPlan]:
    """The plans that can be read, by environment."""
    found: dict[str, EmergencyPlan] = {}
    for file in sorted(folder.glob(f"*{_END}")):
        try:
            if file.stat().st_size > MAX_BYTES:
                raise OSError("it is too large")
            plan = json.decode(_cipher().decrypt(file.read_bytes()), type=EmergencyPlan)
        except (OSError, InvalidToken, MsgspecError) as error:
            log.error("oncall.plan_unreadable", file=file.name, error=str(error) or type(error).__name__)
            continue
        found[plan.environment] = plan
    return found


def has_plans(folder: Path) -> bool:
    return any(folder.glob(f"*{_END}"))


def forget_plan(folder: Path, environment: str) -> None:
    """Delete the file of an environment that was deleted. Raises ``OSError``."""
    (folder / f"{environment}{_END}").unlink(missing_ok=True)


def make_private(folder: Path) -> None:
    """Make the folder of a gateway, which only this user can read. Raises ``OSError``."""
    # One after the other, because ``parents`` makes folders that others can read.
    for each in (folder.parent, folder):
        each.mkdir(mode=0o700, parents=True, exist_ok=True)


def replace(file: Path, data: bytes) -> None:
    """Write a file that only this user can read, whole or not at all. Raises ``OSError``."""
    make_private(file.parent)
    draft = file.with_name(f"{file.name}.new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
        rest = memoryview(data)
        while rest:  # A disk that is nearly full takes a part of it without an error.
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    draft.rename(file)
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _cipher() -> MultiFernet:
    return cipher(_SALT, "plan")
