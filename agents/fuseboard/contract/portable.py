"""Exceptions that another process can load.

Pools of processes, job engines and result stores send exceptions between processes. By default, Python makes
an exception again by calling its class with ``args``. That fails, or doubles the text, when ``__init__``
takes anything else. An exception that cannot be loaded breaks the whole pool.
"""

from typing import Any, Self


class Portable:
    """Put it before the exception class. Pickling and ``deepcopy`` restore ``args`` and the attributes.

    ``__init__`` is not called again.
    """

    args: tuple[Any, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self._portable(self.args), self._portable(self.__dict__))

    def __copy__(self) -> Self:
        copied: Self = _restored(type(self), self.args, self.__dict__)
        return copied

    def _portable(self, state: Any) -> Any:
        """The ``args`` and the attributes that may leave the process."""
        return state


def _restored(kind: type[Any], args: tuple[Any, ...], attributes: dict[str, Any]) -> Any:
    made = kind.__new__(kind, *args)
    made.args = args
    made.__dict__.update(attributes)
    return made
