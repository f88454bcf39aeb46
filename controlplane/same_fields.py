"""Makes a dataclass from an object, such as a row, that has most of its fields under the same names."""

from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")


def made_from(kind: type[T], source: object, /, **others: Any) -> T:
    """Make ``kind`` with these fields, and all others as ``source`` has them, also those with a default.

    Pass a field among ``others`` if ``source`` has it in another form, such as a moment.
    """
    same = {one.name: getattr(source, one.name) for one in fields(kind) if one.name not in others}
    return kind(**same, **others)
