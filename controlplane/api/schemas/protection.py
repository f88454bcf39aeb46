"""Protection as it comes in and goes out. ``fuseboard.contract.protection_fields`` describes its settings."""

from typing import Annotated, Any, Literal, TypeVar

from ninja import Schema
from pydantic import Field, create_model

from controlplane.api.schemas.edits_in import (
    BreakerColumns,
    ExpectedRevision,
    LatencyRise,
    Note,
    PartTime,
    ReasonIn,
    Slug,
    StoreWait,
    Strict,
    Text,
    Version,
    Wait,
)
from controlplane.policies.models import MAX_MS
from controlplane.policies.protection_presets import PRESETS
from fuseboard.contract.protection_fields import (
    CALL_SETTINGS,
    MAX_OBSERVE_S,
    MAX_ROUTES,
    POD_SETTINGS,
    TIERS,
    Setting,
    expected,
)

Model = TypeVar("Model", bound=Schema)

#: Called with values that are known when it runs, which a type checker cannot follow.
_Literal: Any = Literal


class RouteIn(Strict):
    """Requests that match a pattern, in which ``*`` stands for any characters."""

    pattern: Annotated[str, Field(min_length=1, max_length=200, description="Such as POST /v1/*.")]
    sla_ms: Annotated[int, Field(ge=1, le=600_000, description="How long a request should take.")]


class RouteOut(Schema):
    pattern: str
    sla_ms: int


def _type_in(setting: Setting) -> Any:
    number = Annotated[int, Field(ge=setting.least, le=setting.most)]
    three = Field(min_length=len(TIERS), max_length=len(TIERS))
    match setting.kind:
        case "number":
            return number
        case "flag":
            return bool
        case "word":
            return _Literal[setting.words]
        case "numbers":
            return Annotated[list[number], three]
        case "words":
            return Annotated[list[_Literal[setting.words]], three]
        case "routes":
            return Annotated[list[RouteIn], Field(max_length=MAX_ROUTES)]


def _type_out(setting: Setting) -> Any:
    match setting.kind:
        case "number":
            return int
        case "flag":
            return bool
        case "word":
            return str
        case "numbers":
            return list[int]
        case "words":
            return list[str]
        case "routes":
            return list[RouteOut]


def _with(model: type[Model], settings: tuple[Setting, ...], part: str, *, out: bool) -> type[Model]:
    """Add the settings of a part, or those of the protection itself. What comes in may leave any out."""
    described: dict[str, Any] = {}
    for each in settings:
        if each.part == part:
            text = f"{each.help} {expected(each)[:1].upper()}{expected(each)[1:]}."
            kind, default = (_type_out(each), ...) if out else (_type_in(each), each.default)
            if out and each.name.endswith("_until_us"):
                default = 0
            described[each.name] = (Annotated[kind, Field(description=text)], default)
    return create_model(
        model.__name__, __base__=model, __doc__=model.__doc__, __module__=model.__module__, **described
    )


def _call(part: str, *, out: bool) -> Any:
    return lambda model: _with(model, CALL_SETTINGS, part, out=out)


def _pod(part: str, *, out: bool) -> Any:
    return lambda model: _with(model, POD_SETTINGS, part, out=out)


@_call("bulkhead", out=False)
class BulkheadIn(Strict):
    """Slots for calls of one pod. Lists are: critical, standard, optional."""


@_call("local_rate", out=False)
class LocalRateIn(Strict):
    """The most calls of one pod. It protects the pod: it is not the vendor's limit."""


@_call("retry", out=False)
class RetryIn(Strict):
    """When a failed call is made again, and how often at most."""


@_call("", out=False)
class CallProtectionIn(Strict):
    """A value that is left out stays as it is, or is the default. A part that is null is off."""

    bulkhead: BulkheadIn | None = None
    local_rate: LocalRateIn | None = None
    retry: RetryIn | None = None


@_pod("shedding", out=False)
class SheddingIn(Strict):
    """When a pod refuses requests because it is overloaded."""


@_pod("readiness", out=False)
class ReadinessIn(Strict):
    """When a pod under pressure asks for no new traffic. A gateway must agree."""


@_pod("observe", out=False)
class ObserveIn(Strict):
    """Until when a part decides and counts, but refuses nothing: at most 7 days from now; 0 for the past."""


@_pod("", out=False)
class PodProtectionIn(Strict):
    """A value that is left out stays as it is, or is the default. A part that is null is off."""

    shedding: SheddingIn | None = None
    readiness: ReadinessIn | None = None
    observe: ObserveIn = Field(default_factory=ObserveIn)


@_call("bulkhead", out=True)
class BulkheadOut(Schema):
    pass


@_call("local_rate", out=True)
class LocalRateOut(Schema):
    pass


@_call("retry", out=True)
class RetryOut(Schema):
    pass


@_call("", out=True)
class CallProtectionOut(Schema):
    """A part that is null is off."""

    bulkhead: BulkheadOut | None = None
    local_rate: LocalRateOut | None = None
    retry: RetryOut | None = None


@_pod("shedding", out=True)
class SheddingOut(Schema):
    pass


@_pod("readiness", out=True)
class ReadinessOut(Schema):
    pass


@_pod("observe", out=True)
class ObserveOut(Schema):
    pass


class PodProtectionOut(Schema):
    """A part that is null is off."""

    shedding: SheddingOut | None = None
    readiness: ReadinessOut | None = None
    routes: list[RouteOut] = []  # noqa: RUF012
    retries_per_s: int
    observe: ObserveOut | None = None


Off = Literal["off"]
_PRESETS_TEXT = "Values to begin with: " + "; ".join(
    f"{part}: {', '.join(names)}" for part, names in PRESETS.items()
)


class PresetsIn(Strict):
    """The figures of the documentation. Values in ``protection`` override them."""

    bulkhead: Literal["small", "medium", "large"] | None = None
    sla: Literal["llm", "api", "database"] | None = None
    retry: Literal["user-facing", "background", "llm", "rate-limited"] | None = None


class DependencyIn(ReasonIn):
    name: Slug
    kind: Annotated[
        Literal["llm", "external", "database", "internal"],
        Field(description="Selects the preset of the breaker's policy."),
    ]
    title: Text = ""
    owner: Text = ""
    fallback_note: Note = ""
    timeout_ms: Annotated[int, Field(ge=1, le=MAX_MS)] = 30_000
    wait_ms: Wait = 0
    first_part_ms: PartTime | None = None
    between_parts_ms: PartTime | None = None
    store_wait_ms: StoreWait | None = None
    latency_rise_percent: LatencyRise | None = None
    runbook: Slug | None = None
    breaker: BreakerColumns = {}  # noqa: RUF012
    protection: Annotated[
        CallProtectionIn | Off | None,
        Field(description="What protects pods from it. Without it, or with off: nothing."),
    ] = None


class ProtectionIn(ReasonIn):
    protection: Annotated[
        CallProtectionIn | Off, Field(description="What to change; off turns all of it off.")
    ] = Field(default_factory=CallProtectionIn)
    preset: Annotated[PresetsIn, Field(description=f"{_PRESETS_TEXT}.")] = Field(default_factory=PresetsIn)
    expected_version: Annotated[
        Version | None, Field(description="The version this edit is based on; or send If-Match.")
    ] = None


class ObserveForIn(Strict):
    """Seconds from now for which a part decides and counts, but refuses nothing; 0 ends this."""

    shedding: Annotated[int | None, Field(ge=0, le=MAX_OBSERVE_S)] = None
    bulkhead: Annotated[int | None, Field(ge=0, le=MAX_OBSERVE_S)] = None
    local_rate: Annotated[int | None, Field(ge=0, le=MAX_OBSERVE_S)] = None
    retry: Annotated[int | None, Field(ge=0, le=MAX_OBSERVE_S)] = None


class PodProtectionChange(ReasonIn):
    protection: Annotated[
        PodProtectionIn | Off, Field(description="What to change; off turns all of it off.")
    ] = Field(default_factory=PodProtectionIn)
    observe_for_s: Annotated[
        ObserveForIn, Field(description="Parts that only observe, for a time from now, at most 7 days.")
    ] = Field(default_factory=ObserveForIn)
    expected_revision: ExpectedRevision | None = None


def change_in(given: Schema | str) -> Any:
    """Return what a request says, without what it leaves out."""
    return given if isinstance(given, str) else given.model_dump(exclude_unset=True)
