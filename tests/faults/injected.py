"""Faults inside a pod: name servers that hang, a full disk, no descriptors."""

import errno
import os
import resource
import socket
import tempfile
import time

_resolve, _fsync, _mkstemp = socket.getaddrinfo, os.fsync, tempfile.mkstemp


def inject(fault: str, on: bool = True, seconds: float = 0.0) -> object:
    """Names: ``dns-hangs``, ``dns-unknown``, ``disk-full``, ``disk-read-only``, ``no-descriptors``."""
    if fault == "no-descriptors":
        return _limit_descriptors(on)
    if not on:
        socket.getaddrinfo, os.fsync, tempfile.mkstemp = _resolve, _fsync, _mkstemp
    elif fault == "dns-hangs":
        socket.getaddrinfo = lambda *arguments, **options: (
            time.sleep(seconds) or _resolve(*arguments, **options)
        )
    elif fault == "dns-unknown":
        socket.getaddrinfo = _unknown
    elif fault == "disk-full":
        os.fsync = _full
    elif fault == "disk-read-only":
        tempfile.mkstemp = _read_only
    else:
        raise ValueError(f"nobody knows what {fault!r} is")
    return None


def _unknown(*arguments: object, **options: object) -> object:
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


def _full(descriptor: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def _read_only(*arguments: object, **options: object) -> tuple[int, str]:
    raise OSError(errno.EROFS, "Read-only file system")


def _limit_descriptors(on: bool) -> int:
    """Allow no new descriptor; open ones stay open."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = 3 if on else min(1024, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft
