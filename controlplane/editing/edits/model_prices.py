"""Edits of models and their prices."""

from collections.abc import Mapping

from django.utils import timezone

from controlplane.audit.actor import Actor
from controlplane.editing.edits.edit_entity import EntityEdit, put_edit, remove_entity, save_call
from controlplane.errors import InvalidEdit
from controlplane.policies.fields import limits_in
from controlplane.policies.state import read_entity
from controlplane.spending.fields import read_start, start_text
from controlplane.spending.model_checks import BEGUN


def set_model(
    *,
    environment: str,
    model: str,
    expected_version: int | None,
    reason: str,
    actor: Actor,
    aliases: list[str] | None = None,
    pool: str | None = None,
    prices: Mapping[str, Mapping[str, int]] | None = None,
) -> int:
    """Create a model, on version 0, or change one. What is ``None``, and prices that are not named, stay.

    ``prices`` has each price by the text of its start.
    """
    given = {"aliases": aliases, "pool": pool, "prices": prices}
    edit = put_edit(environment, "model", model, expected_version, given)
    return save_call(edit, reason=reason, actor=actor)


def set_price(
    *,
    environment: str,
    model: str,
    starts_at: str,
    price: Mapping[str, int],
    expected_version: int | None,
    reason: str,
    actor: Actor,
) -> int:
    """Add a price from an instant on, or change one that has not begun. Columns that are left out stay; those
    of a new price are filled in.
    """
    typed = {"prices": {_start(starts_at): dict(price)}}
    edit = EntityEdit(environment, "model", model, typed=typed, version=expected_version)
    return save_call(edit, reason=reason, actor=actor, action="model_price.set")


def remove_price(
    *,
    environment: str,
    model: str,
    starts_at: str,
    expected_version: int | None,
    reason: str,
    actor: Actor,
) -> int:
    """Remove a price that has not begun."""
    start = _start(starts_at)
    present = limits_in("prices", read_entity(environment, "model", model) or {})
    if start in present and read_start(start) <= timezone.now():
        raise InvalidEdit({"starts_at": [BEGUN]})
    edit = EntityEdit(environment, "model", model, removed=(start,), version=expected_version)
    return save_call(edit, reason=reason, actor=actor, action="model_price.removed")


def remove_model(
    *, environment: str, model: str, expected_version: int | None, reason: str, actor: Actor
) -> int:
    """Remove a model with its prices. Its calls belong to the dependency of their host, and have no price."""
    return remove_entity(
        environment=environment,
        kind="model",
        name=model,
        version=expected_version,
        reason=reason,
        actor=actor,
    )


def _start(text: str) -> str:
    try:
        return start_text(read_start(text))
    except ValueError as error:
        raise InvalidEdit({"starts_at": [str(error)]}) from error
