"""The mode of a pod in words, as pages and reports show a change of it."""

_MODES = {
    "shared": "shared limits",
    "local": "local limits",
    "ramping": "ramping up",
    "drill": "drill",
}


def mode_change_words(change: str) -> str:
    """``shared -> local``, as a trigger of the database stores it, to "shared limits \u2192 local limits"."""
    return " \u2192 ".join(_MODES.get(mode, mode) for mode in change.split(" -> "))
