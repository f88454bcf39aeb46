"""Old names of the public API: they work for one release, and warn once per process."""

import warnings

_warned: set[str] = set()


def warn_renamed(old: str, new: str) -> None:
    """Warn the caller of the function that calls this one.

    Once per process, not once per line: an old name may be used for every request.
    """
    if old in _warned:
        return
    _warned.add(old)
    warnings.warn(
        f"{old} is deprecated and will be removed in release 0.3: use {new}", DeprecationWarning, stacklevel=3
    )
