"""Clears the counter of a limit."""

from typing import Annotated, Literal

import redis
from django.http import HttpRequest
from ninja import Router, Schema
from ninja.errors import HttpError
from pydantic import Field

from controlplane.api.http.auth import actor_of, needs
from controlplane.api.schemas.budgets import BudgetName
from controlplane.api.schemas.edits_in import Environment, ReasonIn, Slug, Subject
from controlplane.usage.clear_counter import DOWN, clear_counter

router = Router()

Value = Annotated[str, Field(max_length=200)]


class CounterIn(ReasonIn):
    """A quota of ``tenant``, a vendor limit of ``dependency``, its quota on it, or a limit of callers; or a
    ``budget``.
    """

    limit: Slug | Literal[""] = ""
    budget: Annotated[
        BudgetName | Literal[""],
        Field(description="Instead of a limit. That of a tier counts each ``tenant``."),
    ] = ""
    tenant: Subject | Literal[""] = ""
    dependency: Slug | Literal[""] = ""
    user: Annotated[Value, Field(description="For a limit that counts per user.")] = ""
    ip: Annotated[Value, Field(description="For a limit that counts per address.")] = ""
    api_key: Annotated[Value, Field(description="For a limit that counts per key.")] = ""
    endpoint: Annotated[Value, Field(description="For a limit that counts per endpoint.")] = ""


class ClearedOut(Schema):
    counted: Annotated[bool, Field(description="Whether the counter had anything.")]


@router.post("/clear", response=ClearedOut, auth=needs("clear_counter"))
def clear(request: HttpRequest, environment: Environment, values: CounterIn) -> ClearedOut:
    """Clear the counter of one limit or budget: the next call finds it empty.

    Pods charged their leases before, and spend them within 0.5 s. A pod that remembers a refusal asks Redis
    again within 1 s. Slots of running calls cannot be cleared.
    """
    given = values.model_dump()
    by = {name: given.pop(name) for name in ("user", "ip", "api_key", "endpoint")}
    try:
        counted = clear_counter(environment=environment, actor=actor_of(request), values=by, **given)
    except redis.RedisError as error:
        raise HttpError(503, DOWN) from error
    return ClearedOut(counted=counted)
