"""One description of the fields of a limit: everything that spells a field agrees with it."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from controlplane.api.api import api
from controlplane.editing import edits
from controlplane.editing.plans import apply_plan, difference, export_csv, export_plan, read_plan
from controlplane.errors import InvalidEdit
from controlplane.policies.document import environment_of, policy_of, tenant_records
from controlplane.policies.limit_fields import (
    IN_TEMPLATE_FORM,
    WORDS,
    QuotaOptions,
    SubjectLimitOptions,
    documentation,
)
from controlplane.policies.limits import VALUES, QuotaColumns
from dashboard.views.editor.form_input import typed_in
from dashboard.views.limits.template_form import TemplateForm
from dashboard.words.limit_values import form_value
from fuseboard.contract.limit_fields import (
    BY_NAME,
    CALLERS,
    FIELDS,
    NUMBERS,
    QUOTAS,
    Choice,
    Choices,
    Flag,
    LimitField,
    Name,
    Number,
    TimeZone,
    fields_of,
)
from fuseboard.contract.policy import Limit
from tests.controlplane.calling import API

LIMITS_PAGE = Path(__file__).resolve().parents[3] / "docs" / "limits.md"
#: Of quotas. The limits of callers have one more.
each_field = pytest.mark.parametrize("field", fields_of(QUOTAS), ids=lambda field: field.name)


def value_of(field: LimitField) -> Any:
    """A value that is allowed and is not the default."""
    match field:
        case Number():
            return 7
        case Flag():
            return True
        case Choice():
            return next(str(word) for word in field.words if word != field.default)
        case Choices():
            return [str(word) for word in field.words][:2]
        case Name():
            return "openai"
        case TimeZone():
            return "Europe/Berlin"
        case _:
            return ["POST /v1/*"]


def values_with(field: LimitField) -> dict[str, Any]:
    """The values of a quota that has the field."""
    values: dict[str, Any] = {"limit": 5, "window_s": 60, field.name: value_of(field)}
    if field.algorithms:
        values["algorithm"] = str(field.algorithms[0])
    if field.failure_policies:
        values["failure_policy"] = str(field.failure_policies[0])
    if values.get("algorithm") == "fixed_window":
        values.setdefault("period", "day")
    return values


def on_the_wire(limit: Limit, field: LimitField) -> Any:
    if field.name == "window_s":
        return limit.window_ms // 1000
    value = getattr(limit, field.name)
    return list(value) if isinstance(value, tuple) else value


def own_quota() -> Limit:
    record = tenant_records("production")["acme"]
    assert record is not None
    [quota] = record.quotas
    return quota


@each_field
def test_the_policy_document_and_the_rows_have_the_field(field: LimitField) -> None:
    wire = {each.name: each for each in msgspec.structs.fields(Limit)}
    column = QuotaColumns._meta.get_field(field.name)
    if field.default is None:
        assert not column.has_default()
        return
    assert column.get_default() == (
        list(field.default) if isinstance(field.default, tuple) else field.default
    )
    assert wire[field.name].default == (
        field.default if field.default != "" or not isinstance(field, Choice) else None
    )


def test_the_policy_document_has_no_field_that_is_not_described() -> None:
    wire = {each.name for each in msgspec.structs.fields(Limit)}
    assert wire - {"name", "window_ms"} == BY_NAME.keys() - {"window_s"}


@pytest.mark.parametrize(
    "field", [each for each in FIELDS if isinstance(each, Number)], ids=lambda each: each.name
)
def test_pods_accept_exactly_the_range_of_a_number(field: Number) -> None:
    name, unit = ("window_ms", 1000) if field.name == "window_s" else (field.name, 1)
    document = {"name": "x", "limit": 1, "window_ms": 1000}
    for value in (field.least, field.most):
        msgspec.convert({**document, name: value * unit}, Limit)
    for value in (field.least - 1, field.most + 1):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({**document, name: value * unit}, Limit)


def test_edits_accept_every_field_by_its_name() -> None:
    for whose, options in ((QUOTAS, QuotaOptions), (CALLERS, SubjectLimitOptions)):
        assert options.__annotations__.keys() - {"template"} == {field.name for field in fields_of(whose)}
    assert WORDS.keys() == BY_NAME.keys()


@each_field
def test_a_value_reaches_the_pods_and_every_file(production: str, ada: Any, field: LimitField) -> None:
    common: dict[str, Any] = {"environment": production, "reason": "for a test", "actor": ada}
    edits.set_tenant_quota(**common, tenant="acme", quota="x", expected_version=None, **values_with(field))
    assert on_the_wire(own_quota(), field) == value_of(field)
    files = ["".join(export_plan(production)), "".join(export_csv(production))]
    for file in files:
        assert not difference(production, read_plan(file))
    edits.remove_tenant_quota(**common, tenant="acme", quota="x", expected_version=None)
    for file in files:
        revision = apply_plan(plan=read_plan(file), expected_revision=None, **common)
        assert on_the_wire(own_quota(), field) == value_of(field)
        edits.rollback(**common, to_revision=revision - 1, expected_revision=revision)


@pytest.mark.parametrize("line_break", ["\n", "\r\n"])
def test_a_csv_file_keeps_patterns_whole(production: str, ada: Any, line_break: str) -> None:
    patterns = ["POST /v1/*", "/caf\u00e9\u00a0noir", "/plain"]
    common: dict[str, Any] = {"environment": production, "reason": "for a test", "actor": ada}
    for given in (patterns, patterns[1:]):
        edits.set_tenant_quota(
            **common, tenant="acme", quota="x", expected_version=None, limit=5, window_s=60, endpoints=given
        )
        file = "".join(export_csv(production)).replace("\r\n", "\n").replace("\n", line_break)
        assert not difference(production, read_plan(file))


@each_field
def test_the_api_takes_the_field_and_returns_it(call: Any, field: LimitField) -> None:
    path = f"{API}/tenants/acme/quotas/x"
    body = {**values_with(field), "expected_version": 1, "reason": "for a test"}
    assert call("admin", "PUT", path, body).status_code == 200
    [quota] = call("viewer", "GET", f"{API}/tenants/acme").json()["quotas"]
    assert quota[field.name] == value_of(field)
    described = api.get_openapi_schema()["components"]["schemas"]
    for schema in ("TenantQuotaIn", "TenantQuotaOut", *(() if field.only else ("TemplateIn",))):
        assert described[schema]["properties"][field.name]["description"] == WORDS[field.name].help


@each_field
def test_a_form_that_shows_the_field_returns_its_value(field: LimitField) -> None:
    value = value_of(field)
    text = "\n".join(value) if isinstance(value, list) else form_value(field, value)
    present = {**values_with(field), field.name: field.default}
    shown = {f"quotas.x.{column}": each for column, each in present.items()}
    typed = typed_in("tenant", {f"limit.x.{field.name}": text}, shown)
    assert typed.fields["quotas"]["x"][field.name] == value
    bound = TemplateForm({field.name: text})
    bound.is_valid()
    assert bound.columns() == ({field.name: value} if field in IN_TEMPLATE_FORM else {})


class TestLimitOfAllCallers:
    def test_pods_files_the_api_and_the_form_have_the_service(
        self, production: str, ada: Any, call: Any
    ) -> None:
        body = {"limit": 5, "window_s": 60, "service": "web", "reason": "for a test"}
        assert call("admin", "PUT", f"{API}/subject-limits/flood", body).status_code == 200
        [shown] = call("viewer", "GET", f"{API}/subject-limits").json()
        assert (shown["service"], shown["per"]) == ("web", [])
        policy = policy_of(environment_of(production))
        assert not policy.subject_limits
        [limit] = policy.service_limits
        assert (limit.name, limit.service, limit.failure_policy) == ("flood", "web", "local_share")
        file = "".join(export_plan(production))
        assert "service: web" in file
        assert not difference(production, read_plan(file))
        common: dict[str, Any] = {"environment": production, "reason": "for a test", "actor": ada}
        edits.remove_subject_limit(**common, name="flood")
        apply_plan(plan=read_plan(file), expected_revision=None, **common)
        assert policy_of(environment_of(production)).service_limits == policy.service_limits
        typed = typed_in(
            "environment",
            {"limit.flood.service": "*"},
            {f"subject_limits.flood.{k}": v for k, v in shown.items()},
        )
        assert typed.fields["subject_limits"]["flood"]["service"] == "*"

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({}, "name a service"),
            ({"per": []}, "name a service"),
            ({"service": "*", "per": ["ip"]}, "share one counter"),
            ({"service": "no name!"}, "letters"),
        ],
    )
    def test_a_limit_counts_each_caller_or_all_of_a_service(
        self, production: str, ada: Any, given: dict[str, Any], said: str
    ) -> None:
        values = {"limit": 5, "window_s": 60, **given}
        with pytest.raises(InvalidEdit, match=said):
            edits.set_subject_limit(
                environment=production, name="flood", reason="for a test", actor=ada, **values
            )
        flat = ", ".join(f"{name}: {value}" for name, value in values.items() if value != "*")
        flat += ', service: "*"' if values.get("service") == "*" else ""
        file = f"subject_limits:\n  flood: {{{flat}}}\n"

        def apply() -> int:
            plan = read_plan(file)
            common: dict[str, Any] = {"reason": "for a test", "actor": ada, "expected_revision": None}
            return apply_plan(plan=plan, environment=production, **common)

        with pytest.raises(InvalidEdit, match=said):
            apply()


def test_templates_have_every_field_but_those_that_only_some_limits_have() -> None:
    assert list(VALUES) == [field.name for field in FIELDS if field.name not in ("dependency", "service")]
    assert VALUES[:3] == NUMBERS


def test_the_page_about_limits_has_a_row_for_every_field() -> None:
    table = "\n".join(documentation())
    assert table in LIMITS_PAGE.read_text(), f"Write this table into docs/limits.md:\n{table}"
