"""A key that says what an action is: the same action has the same key, in every process and every release."""

from collections.abc import Mapping, Set
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from hashlib import sha256
from math import isfinite
from typing import Any
from uuid import UUID

from fuseboard.errors import Misconfigured

#: A deeper value is a mistake, or contains itself.
_DEEPEST = 32
_LENGTH = 32


def idempotency_key(entity: str, action: str, /, **params: Any) -> str:
    """The first 32 hexadecimal digits of the SHA-256 of the entity, the action and its parameters.

    ::

        key = fuseboard.idempotency_key("order", "charge", order_id=4711, amount="12.50")

    The order of parameters, of the keys of a mapping, and of a set does not matter. The type does: ``1``,
    ``"1"``, ``1.0`` and ``True`` differ. A tuple counts as a list, an ``Enum`` as its value, a ``datetime``
    as its moment, a ``Decimal`` as its amount. Raises ``Misconfigured`` for a value without one meaning: NaN,
    infinity, a ``datetime`` without a zone, and any other type.
    """
    texts: tuple[tuple[str, object], ...] = (("entity", entity), ("action", action))
    for name, text in texts:
        if not isinstance(text, str) or not text:
            raise Misconfigured(
                f"the {name} of an idempotency key must be text that is not empty, not {text!r:.80}"
            )
    parts = (_encoded(entity, "entity", 0), _encoded(action, "action", 0), _mapping(params, "params", 0))
    return sha256(b"".join(parts)).hexdigest()[:_LENGTH]


def _encoded(value: Any, where: str, depth: int) -> bytes:
    """One letter for the type, and the value with its length, so that no two values have the same bytes."""
    if depth > _DEEPEST:
        raise Misconfigured(
            f"{where} of an idempotency key is nested deeper than {_DEEPEST} times: pass its id"
        )
    match value:
        case None:
            return b"n"
        case Enum():
            return _encoded(value.value, where, depth + 1)
        case bool():
            return b"t" if value else b"f"
        case str():
            return _sized(b"s", _text(value, where))
        case int():
            return _sized(b"i", b"%x" % value)
        case float():
            return _sized(b"d", _float(value, where))
        case Decimal():
            return _sized(b"m", _decimal(value, where))
        case bytes() | bytearray() | memoryview():
            return _sized(b"b", bytes(value))
        case UUID():
            return _sized(b"u", value.bytes)
        case datetime():
            return _sized(b"z", _moment(value, where))
        case date():
            return _sized(b"D", value.isoformat().encode())
        case time():
            return _sized(b"T", value.isoformat().encode())
        case list() | tuple():
            parts = (_encoded(one, f"{where}[{at}]", depth + 1) for at, one in enumerate(value))
            return _sized(b"l", b"".join(parts))
        case Mapping():
            return _mapping(value, where, depth)
        case Set():
            return _sized(b"e", b"".join(sorted(_encoded(one, where, depth + 1) for one in value)))
    raise Misconfigured(
        f"{where} of an idempotency key is of type {type(value).__name__}, which has no one meaning: pass its"
        " id, or text, numbers, bytes, dates, lists or mappings of them"
    )


def _mapping(value: Mapping[Any, Any], where: str, depth: int) -> bytes:
    pairs = sorted(
        _encoded(key, f"a key of {where}", depth + 1) + _encoded(one, f"{where}.{key}", depth + 1)
        for key, one in value.items()
    )
    return _sized(b"o", b"".join(pairs))


def _sized(kind: bytes, content: bytes) -> bytes:
    return b"%b%d:%b" % (kind, len(content), content)


def _text(value: str, where: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise Misconfigured(f"{where} of an idempotency key has half a character (a surrogate)") from None


def _moment(value: datetime, where: str) -> bytes:
    if value.utcoffset() is None:
        raise Misconfigured(
            f"{where} of an idempotency key is a datetime without a zone: its moment is unknown"
        )
    return value.astimezone(UTC).isoformat().encode()


def _check_finite(finite: bool, value: float | Decimal, where: str) -> None:
    if not finite:
        raise Misconfigured(f"{where} of an idempotency key is {value}, which equals nothing: pass a number")


def _float(value: float, where: str) -> bytes:
    _check_finite(isfinite(value), value, where)
    # Both zeros are the same number.
    return repr(float(value) or 0.0).encode()


def _decimal(value: Decimal, where: str) -> bytes:
    """``1.50`` and ``1.5`` are the same amount. ``normalize`` would round long ones."""
    _check_finite(value.is_finite(), value, where)
    sign, digits, exponent = value.as_tuple()
    significant = "".join(map(str, digits)).lstrip("0")
    stripped = significant.rstrip("0")
    if not stripped:
        return b"0"
    # A finite number has a whole exponent.
    power = int(exponent) + len(significant) - len(stripped)
    return f"{'-' * sign}{stripped}e{power}".encode()
