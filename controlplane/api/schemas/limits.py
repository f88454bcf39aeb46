"""Limits as they come in and go out. Their values are described in ``fuseboard.contract.limit_fields``."""

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Literal, TypeVar

from ninja import Schema
from pydantic import Field, create_model

from controlplane.api.schemas.edits_in import Endpoint, ReasonIn, Slug, Text, Version
from controlplane.policies.limit_fields import WORDS
from fuseboard.contract.limit_fields import (
    CALLERS,
    FIELDS,
    QUOTAS,
    Choice,
    Choices,
    Flag,
    LimitField,
    Name,
    Number,
    Patterns,
    TimeZone,
)

Model = TypeVar("Model", bound=Schema)

#: Called with values that are known when it runs, which a type checker cannot follow.
_Literal: Any = Literal


def with_values_in(*, only: str = "") -> Callable[[type[Model]], type[Model]]:
    """Add the values of every limit, or those that ``only`` some have, to a schema. All may be left out."""

    def add(model: type[Model]) -> type[Model]:
        return _with(model, {each: (_type_in(each) | None, None) for each in _fields(only)})

    return add


def with_values_out(*, only: str = "") -> Callable[[type[Model]], type[Model]]:
    """``limit_fields`` for answers, where no value is missing."""

    def add(model: type[Model]) -> type[Model]:
        return _with(model, {each: (_type_out(each), ...) for each in _fields(only)})

    return add


def _fields(only: str) -> list[LimitField]:
    return [each for each in FIELDS if each.only == only]


def _with(model: type[Model], fields: dict[LimitField, tuple[Any, Any]]) -> type[Model]:
    described: Any = {
        each.name: (Annotated[annotation, Field(description=WORDS[each.name].help)], default)
        for each, (annotation, default) in fields.items()
    }
    return create_model(
        model.__name__, __base__=model, __doc__=model.__doc__, __module__=model.__module__, **described
    )


def _type_in(field: LimitField) -> Any:
    match field:
        case Number():
            return Annotated[int, Field(ge=field.least, le=field.most)]
        case Flag():
            return bool
        case Choice():
            return _Literal[field.values]
        case Choices():
            words = tuple(field.words)
            return Annotated[list[_Literal[words]], Field(max_length=len(words))]
        case Name():
            return Slug if field.default else Slug | _Literal["", *([field.every] if field.every else [])]
        case TimeZone():
            return Text
        case Patterns():
            return Annotated[list[Endpoint], Field(max_length=field.most)]


def _type_out(field: LimitField) -> Any:
    match field:
        case Number():
            return int
        case Flag():
            return bool
        case Choices() | Patterns():
            return list[str]
        case _:
            return str


@with_values_in()
class ValuesIn(ReasonIn):
    """A value that is left out stays as it is. A new limit needs ``limit`` and ``window_s``."""


class TemplateIn(ValuesIn):
    title: Text | None = None
    expected_version: Annotated[
        int | None,
        Field(
            ge=0,
            le=2**31 - 1,
            description="The version this edit is based on, or 0 for a new template; or send If-Match.",
        ),
    ] = None


class AnyLimitIn(ValuesIn):
    """A value that is left out stays as it is. Any other value overrides the template, if there is one."""

    template: Annotated[
        Slug | Literal[""] | None,
        Field(description="Inherit all values not given here from this template; empty to stop inheriting."),
    ] = None


@with_values_in(only=QUOTAS)
class QuotaIn(AnyLimitIn):
    expected_version: Annotated[
        Version | None, Field(description="The version this edit is based on; or send If-Match.")
    ] = None


class TenantQuotaIn(QuotaIn):
    expires_in_s: Annotated[
        int | None,
        Field(
            ge=1,
            le=400 * 86_400,
            description="Seconds until the previous quota applies again; left out, this one stays.",
        ),
    ] = None


@with_values_in(only=CALLERS)
class LimitIn(AnyLimitIn):
    """A limit of callers. Clients of version 0.1.0 know it by this name."""


class VendorLimitIn(AnyLimitIn):
    expected_version: Annotated[
        Version | None, Field(description="The version this edit is based on; or send If-Match.")
    ] = None


@with_values_out()
class ValuesOut(Schema):
    name: str


class AnyLimitOut(ValuesOut):
    template: Annotated[str, Field(description="The template it follows; empty for none.")]
    own: Annotated[list[str], Field(description="Names of the values that override the template.")]


class LimitOut(AnyLimitOut):
    """A limit of callers or of a vendor, by its name in version 0.1.0."""

    service: Annotated[str, Field(description="Whose callers it counts; empty for a limit of a vendor.")] = ""


@with_values_out(only=QUOTAS)
class QuotaOut(AnyLimitOut):
    pass


class TenantQuotaOut(QuotaOut):
    expires_at: Annotated[datetime | None, Field(description="When it ends; null when it stays.")]
