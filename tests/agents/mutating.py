"""Modules with a bug: each is one edit of the source, and some test must notice it."""

import inspect
import sys
import types
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    name: str
    old: str
    new: str


def mutated(module: types.ModuleType, mutant: Mutant) -> types.ModuleType:
    """The module with this bug, beside the one that is imported.

    It is in ``sys.modules``, where ``VirtualTime`` looks for clocks to replace. With the real clock, a test
    would fail for another reason than the bug.
    """
    source = inspect.getsource(module)
    assert source.count(mutant.old) == 1, f"{mutant.name!r} no longer matches the code"
    twin = types.ModuleType(f"{module.__name__}_with_a_bug")
    code = compile(source.replace(mutant.old, mutant.new), twin.__name__, "exec")
    sys.modules[twin.__name__] = twin
    exec(code, twin.__dict__)  # noqa: S102
    return twin
