"""The last good configuration on disk, so that a pod can restart with everything else down.

A file is one header line (format, length, SHA-256 of the rest) and one JSON document. It is written
under a temporary name, flushed to disk and renamed: a reader sees the old file or the new one. A file
is refused whole unless every byte is as it was written.
"""

import logging
import os
from hashlib import sha256
from pathlib import Path

import msgspec
from msgspec import Struct

from fuseboard.configuration.checked_config import (
    MAX_DOCUMENT_BYTES,
    CheckedConfig,
    check_config,
    check_tenants,
)
from fuseboard.contract.policy import ConfigHead, TenantRecord, hash_of
from fuseboard.contract.words import ConfigSource

logger = logging.getLogger("fuseboard.configuration")

#: Rises when the layout changes. A file of another format is refused.
FORMAT = "fuseboard-config-1"

#: Enough for the policy and the records of 20,000 tenants.
MAX_FILE_BYTES = 8 * MAX_DOCUMENT_BYTES


class SavedConfig(Struct, frozen=True, kw_only=True):
    """The content of a file."""

    environment: str
    head: ConfigHead
    policy: msgspec.Raw
    tenants: dict[str, TenantRecord | None]
    #: The number of live servers when it was written.
    live_servers: int


class Bootstrap(Struct, frozen=True, kw_only=True):
    """A file made by hand or by a build. It counts as revision 0, so anything published replaces it."""

    policy: msgspec.Raw
    tenants: dict[str, TenantRecord | None] = {}


class DiskError(ValueError):
    """A file is damaged or of another format. The message says how, without its content."""


class Disk:
    """The file of one environment and service. A failed write is counted, and logged once."""

    def __init__(self, directory: Path, *, environment: str, service: str) -> None:
        # No slug contains "@", so two pairs never share a name.
        self.path = directory / f"{environment}@{service}.config"
        self.failures = 0
        self._environment = environment

    def write(self, kept: SavedConfig) -> bool:
        body = msgspec.json.encode(kept)
        header = f"{FORMAT} {len(body)} {sha256(body).hexdigest()}\n".encode()
        try:
            replace_file(self.path, header + body)
        except OSError as error:
            self.failures += 1
            if self.failures == 1:
                logger.warning("config.not_kept path=%s: %s; the agent continues", self.path, error.strerror)
            return False
        return True

    def read(self) -> tuple[CheckedConfig, int] | None:
        """The offer and the number of live servers; ``None`` without a file.

        Raises ``DiskError`` or ``ConfigError`` for a file that must not be used.
        """
        content = _read_file(self.path)
        if content is None:
            return None
        kept = _decode(content)
        if kept.environment != self._environment:
            raise DiskError(f"written for environment {kept.environment!r}")
        offer = check_config(
            environment=self._environment,
            head=kept.head,
            document=bytes(kept.policy),
            tenants=check_tenants(kept.tenants),
            source=ConfigSource.DISK,
        )
        return offer, max(1, kept.live_servers)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read (0600), in a directory of the same kind."""
    # Only a pod with a state directory needs it, and it loads archives.
    import tempfile

    directory = path.parent
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Each writer has a name of its own, because the pods of one host share the directory.
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=directory)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    _sync_directory(directory)


def read_bootstrap(path: Path, *, environment: str) -> CheckedConfig:
    """Read a bootstrap file. Raises ``DiskError`` or ``ConfigError``."""
    content = _read_file(path)
    if content is None:
        raise DiskError("there is no such file")
    try:
        bootstrap = msgspec.json.decode(content, type=Bootstrap)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DiskError(f"not a bootstrap file: {error}") from error
    document = bytes(bootstrap.policy)
    return check_config(
        environment=environment,
        head=ConfigHead(epoch=0, revision=0, hash=hash_of(document)),
        document=document,
        tenants=check_tenants(bootstrap.tenants),
        source=ConfigSource.BOOTSTRAP,
    )


def _read_file(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DiskError(f"cannot be read: {error.strerror}") from error
    if len(content) > MAX_FILE_BYTES:
        raise DiskError(f"larger than {MAX_FILE_BYTES} bytes")
    return content


def _decode(content: bytes) -> SavedConfig:
    header, _, body = content.partition(b"\n")
    fields = header.split(b" ")
    if len(fields) != 3 or fields[0] != FORMAT.encode():
        raise DiskError(f"not of the format {FORMAT}")
    if fields[1] != str(len(body)).encode():
        raise DiskError("truncated")
    if fields[2] != sha256(body).hexdigest().encode():
        raise DiskError("damaged: the checksum differs")
    try:
        return msgspec.json.decode(body, type=SavedConfig)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DiskError(f"unreadable: {error}") from error


def _sync_directory(directory: Path) -> None:
    """Make the rename survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
