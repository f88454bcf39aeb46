"""What a pod can be made to suffer from inside: name servers that hang, no descriptors left."""

import resource
import socket
import time

_resolve = socket.getaddrinfo


def inject(fault: str, on: bool = True, seconds: float = 0.0) -> object:
    """Names: ``dns-hangs``, ``dns-unknown``, ``no-descriptors``. Returns what was changed."""
    if fault == "no-descriptors":
        return _limit_descriptors(on)
    if not on:
        socket.getaddrinfo = _resolve
    elif fault == "dns-hangs":
        socket.getaddrinfo = lambda *arguments, **options: (
            time.sleep(seconds) or _resolve(*arguments, **options)
        )
    elif fault == "dns-unknown":
        socket.getaddrinfo = _unknown
    else:
        raise ValueError(f"nobody knows what {fault!r} is")
    return None


def _unknown(*arguments: object, **options: object) -> object:
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


def _limit_descriptors(on: bool) -> int:
    """Allow no new descriptor; those that are open stay so."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = 3 if on else min(1024, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft
