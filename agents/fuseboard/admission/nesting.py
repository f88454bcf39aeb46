"""Calls inside the block of another call to the same dependency.

Each of them needs a slot of the dependency's bulkhead. When all slots belong to tasks that want a second one,
these tasks wait for each other until the queue's timeout.
"""

from contextlib import suppress
from contextvars import ContextVar, Token
from typing import TypeAlias

from fuseboard.admission.call_guard import CallGuard
from fuseboard.decision import Permit

#: The calls in whose blocks this task is, or was the task that started it: guards and numbers, not the
#: permits, because a permit that nothing refers to frees its slot.
_Outer: TypeAlias = tuple[tuple[CallGuard, int], ...]
_outer: ContextVar[_Outer] = ContextVar("fuseboard_outer_calls", default=())


def enter_block(permit: Permit) -> Token[_Outer]:
    """The block of this permit begins. Its dependency has a guard."""
    running = [(guard, number) for guard, number in _outer.get() if guard.has_slot(number)]
    return _outer.set((*running, (permit.slot.guard, permit.slot.number)))


def leave_block(entered: Token[_Outer]) -> None:
    # A generator may be resumed in another context. Calls that have ended do not count there.
    with suppress(ValueError):
        _outer.reset(entered)


def is_nested(guard: CallGuard) -> bool:
    """Whether this task, or the one that started it, has a slot of this guard already."""
    return any(outer is guard and guard.has_slot(number) for outer, number in _outer.get())
