"""Models of language, and their prices by date."""

from dataclasses import asdict
from typing import Any

from django.http import HttpRequest, HttpResponse
from ninja import Router

from controlplane.api.http.auth import actor_of, needs
from controlplane.api.http.idempotency import changes_nothing
from controlplane.api.http.versions import RemovalInQuery, edit_arguments, find_version, version_read
from controlplane.api.schemas.configuration_out import RevisionOut
from controlplane.api.schemas.edits_in import Environment, Slug
from controlplane.api.schemas.models import (
    ModelIn,
    ModelOut,
    PriceIn,
    PriceOut,
    RepricedOut,
    RepriceIn,
    RepricePreviewIn,
    StartInPath,
)
from controlplane.editing import edits
from controlplane.policies.document import environment_of
from controlplane.repricing.reprice import preview_repricing, reprice_calls
from controlplane.spending.fields import COLUMNS, start_text
from controlplane.spending.models import PRICES, Model
from controlplane.spending.present_prices import DatedPrice, dated_prices

router = Router()


@router.get("", response=list[ModelOut])
def list_models(request: HttpRequest, environment: Environment) -> list[ModelOut]:
    rows = environment_of(environment).models.order_by("name").prefetch_related("prices")
    return [_out(row) for row in rows]


@router.get("/{model}", response=ModelOut)
def get_model(
    request: HttpRequest, response: HttpResponse, environment: Environment, model: Slug
) -> ModelOut:
    row = find_version(response, environment_of(environment).models.all(), "model", name=model)
    return _out(row)


@router.put("/{model}", response=RevisionOut, auth=needs("edit_quota"))
def set_model(request: HttpRequest, environment: Environment, model: Slug, values: ModelIn) -> RevisionOut:
    """Create a model, on version 0, or change one. A price that has begun cannot change."""
    prices = {start: price.model_dump(exclude_none=True) for start, price in (values.prices or {}).items()}
    given = edit_arguments(request, values) | {"prices": prices or None}
    revision = edits.set_model(environment=environment, model=model, **given)
    return RevisionOut(revision=revision)


@router.delete("/{model}", response=RevisionOut, auth=needs("edit_quota"))
def remove_model(
    request: HttpRequest, environment: Environment, model: Slug, removal: RemovalInQuery
) -> RevisionOut:
    """Delete it with its prices. Its calls then belong to the dependency of their host, and cost nothing."""
    revision = edits.remove_model(environment=environment, model=model, **edit_arguments(request, removal))
    return RevisionOut(revision=revision)


@router.put("/{model}/prices/{start}", response=RevisionOut, auth=needs("edit_quota"))
def set_price(
    request: HttpRequest, environment: Environment, model: Slug, start: StartInPath, values: PriceIn
) -> RevisionOut:
    """Add a price from an instant on, or change one that has not begun."""
    price = values.model_dump(exclude={"expected_version", "reason"}, exclude_none=True)
    revision = edits.set_price(
        environment=environment,
        model=model,
        starts_at=start,
        price=price,
        expected_version=version_read(request, values.expected_version),
        reason=values.reason,
        actor=actor_of(request),
    )
    return RevisionOut(revision=revision)


@router.post("/{model}/reprice/preview", response=RepricedOut, auth=needs("edit_quota"))
@changes_nothing
def preview_reprice(
    request: HttpRequest, environment: Environment, model: Slug, values: RepricePreviewIn
) -> RepricedOut:
    """Return what re-pricing would change. It changes nothing."""
    found = preview_repricing(environment=environment, model=model, **_days_and_price(values))
    return RepricedOut.model_validate(asdict(found))


@router.post("/{model}/reprice", response=RepricedOut, auth=needs("edit_quota"))
def reprice(request: HttpRequest, environment: Environment, model: Slug, values: RepriceIn) -> RepricedOut:
    """Let the calls of whole days in UTC cost what they do by this price: in the ledger, and within 10 s in
    the budgets whose present period has these days. Later calls cost what the prices of the model say.
    """
    done = reprice_calls(
        environment=environment,
        model=model,
        **_days_and_price(values),
        expected_version=version_read(request, values.expected_version),
        reason=values.reason,
        actor=actor_of(request),
    )
    return RepricedOut.model_validate(asdict(done))


def _days_and_price(values: RepricePreviewIn) -> dict[str, Any]:
    price = values.model_dump(include=set(PRICES), exclude_none=True)
    return {"since": values.since, "until": values.until, "price": price}


@router.delete("/{model}/prices/{start}", response=RevisionOut, auth=needs("edit_quota"))
def remove_price(
    request: HttpRequest, environment: Environment, model: Slug, start: StartInPath, removal: RemovalInQuery
) -> RevisionOut:
    """Delete a price that has not begun."""
    revision = edits.remove_price(
        environment=environment, model=model, starts_at=start, **edit_arguments(request, removal)
    )
    return RevisionOut(revision=revision)


def _out(row: Model) -> ModelOut:
    prices = [_price_out(dated) for dated in dated_prices(row)]
    return ModelOut(name=row.name, aliases=row.aliases, pool=row.pool, prices=prices, version=row.version)


def _price_out(dated: DatedPrice) -> PriceOut:
    columns = {column: getattr(dated.row, column) for column in COLUMNS}
    return PriceOut(starts_at=start_text(dated.row.starts_at), applies=dated.applies, **columns)
