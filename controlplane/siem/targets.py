"""Where entries go: a signed webhook, or a file of JSON lines."""

import os
from collections.abc import Sequence
from pathlib import Path

from django.conf import settings
from msgspec import json

from controlplane.alerts.delivery.addresses import AddressRefused
from controlplane.alerts.delivery.http import NotDelivered, post
from controlplane.alerts.delivery.signing import signed_headers
from controlplane.audit.export import as_json_lines, values
from controlplane.audit.models import Entry
from controlplane.audit_export.export import NotExported

#: In place of a path: the standard output of the worker. Celery writes there too when it starts and stops.
STDOUT = "-"
#: Answers 4xx that say nothing of the entry: credentials, the address, a time limit, the rate.
_NOT_OF_THE_ENTRY = frozenset((401, 403, 404, 405, 407, 408, 410, 421, 425, 429))


def to_webhook(entries: Sequence[Entry]) -> None:
    """One request for each entry. Raises ``NotExported``."""
    for entry in entries:
        document = {"type": "audit.entry", "timestamp": entry.at.isoformat(), "data": values(entry)}
        body = json.encode(document)
        headers = {
            "content-type": "application/json",
            "user-agent": "fuseboard-webhooks/1",
            # The hash is unique to the entry, and the same in each attempt.
            **signed_headers(body, identity=f"audit_{entry.hash}", secrets=settings.AUDIT_EXPORT_SECRETS),
        }
        try:
            answer = post(settings.AUDIT_EXPORT_URL, body, headers, allowed=settings.WEBHOOK_NETWORKS)
        except (AddressRefused, NotDelivered) as error:
            raise NotExported(str(error)) from error
        if not 200 <= answer.status < 300:
            raise NotExported(
                f"HTTP {answer.status}",
                retry_after_s=answer.retry_after_s,
                refused=400 <= answer.status < 500 and answer.status not in _NOT_OF_THE_ENTRY,
            )


def to_file(entries: Sequence[Entry]) -> None:
    """Raises ``NotExported``."""
    data = as_json_lines(entries).encode()
    try:
        if settings.AUDIT_EXPORT_FILE == STDOUT:
            _write(1, data)
        else:
            _append(Path(settings.AUDIT_EXPORT_FILE), data)
    except OSError as error:
        raise NotExported(f"The file cannot be written: {error.strerror or error}") from error


def _append(file: Path, data: bytes) -> None:
    # Opened for each batch, so that a program that rotates it only has to rename it.
    descriptor = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            # A process died in the middle of a line. That entry follows again, whole.
            data = b"\n" + data
        _write(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if not size:
        # The name of a new file is on the disk only with its folder.
        _sync_folder(file.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:  # A disk that is nearly full takes a part of it without an error.
        rest = rest[os.write(descriptor, rest) :]
