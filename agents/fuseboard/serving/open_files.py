"""The files that a process may open: each connection is one."""

import resource


def most_open_files() -> int | None:
    """The files that this process may open once it has raised its limit; ``None`` for any number."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if hard == resource.RLIM_INFINITY else hard


def allow_open_files(needed: int) -> int:
    """Raise the soft limit of this process to ``needed``, or as far as it may. Return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return needed
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    except (OSError, ValueError):
        # macOS has a limit below the hard one.
        return soft
    return allowed
