"""The REST API, ``/api/v1/``; described at ``/api/v1/docs``."""

from typing import Any

from csp.decorators import csp_update
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from ninja import NinjaAPI, Swagger
from ninja.errors import AuthorizationError
from ninja.openapi.schema import OpenAPISchema
from ninja.operation import Operation

from controlplane.accounts.owned_tokens import TokenEnded
from controlplane.accounts.permissions import View
from controlplane.api.http.auth import AnyToken, needs
from controlplane.api.http.idempotency import idempotent, is_read_only
from controlplane.api.http.openapi import describe
from controlplane.api.http.parsing import StrictParser, known_query
from controlplane.api.http.problems import install, problem
from controlplane.api.http.rate_limit import Spent
from controlplane.api.routes import runbooks
from controlplane.api.routes.alerts import alert_routes, alert_rules, alerts, incidents, mutes, receivers
from controlplane.api.routes.breakers import breakers, dependencies, learned
from controlplane.api.routes.fleet import (
    backlogs,
    checklist,
    descriptor_figures,
    drills,
    locks,
    reconciliation,
    series,
    servers,
    weekly,
)
from controlplane.api.routes.history import audit, change_requests, edit_freeze, markers, revisions, schedules
from controlplane.api.routes.limits import (
    budgets,
    configuration,
    costs,
    counters,
    descriptors,
    limit_templates,
    models,
    subjects,
)
from controlplane.api.routes.people import people, tokens
from controlplane.api.routes.refusals import erasures, error_budgets, refusals
from controlplane.api.routes.tenants import plans, tenants, tiers, usage


def _documentation(view: View) -> View:
    """People who are logged in, and every valid token, of whatever environment, may read it."""
    # The page's stylesheet has its icons as data.
    page: View = login_required(csp_update({"img-src": ["data:"]})(view))

    def shown(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if "Authorization" not in request.headers:
            return page(request, *args, **kwargs)
        try:
            user = AnyToken()(request)
        except (AuthorizationError, TokenEnded, Spent) as error:
            return api.on_exception(request, error)
        return view(request, *args, **kwargs) if user is not None else problem(401)

    return shown


#: The names that operation ids use for renamed modules.
_NAMES_IN_IDS = {"change_requests": "requests", "limit_templates": "templates"}


class Described(NinjaAPI):
    """Adds problems, headers and examples, which all operations share, to the OpenAPI document."""

    def get_openapi_operation_id(self, operation: Operation) -> str:
        """Generated clients depend on these ids, so moving or renaming a module of ours changes none."""
        module = operation.view_func.__module__.rpartition(".")[2]
        return f"controlplane_api_{_NAMES_IN_IDS.get(module, module)}_{operation.view_func.__name__}"

    def get_openapi_schema(self, **options: Any) -> OpenAPISchema:
        schema = super().get_openapi_schema(**options)
        describe(schema, self._read_only_operations())
        return schema

    def _read_only_operations(self) -> frozenset[str]:
        """Ids of the POST operations that change nothing."""
        return frozenset(
            operation.operation_id or self.get_openapi_operation_id(operation)
            for router in self._get_bound_routers()
            for view in router.path_operations.values()
            for operation in view.operations
            if is_read_only(operation.view_func)
        )


api = Described(
    title="Fuseboard",
    version="1",
    description="Everything the dashboard can do. Errors are application/problem+json. Writes need a reason"
    " and, for versioned resources, If-Match or expected_version: 409 lists what another person changed"
    " meanwhile."
    " A write with an Idempotency-Key is made once, however often it is sent.",
    urls_namespace="api",
    auth=needs("view"),
    parser=StrictParser(),
    docs=Swagger(settings={"validatorUrl": None}),
    docs_decorator=_documentation,
)
install(api)
change_requests.install(api)
api.add_decorator(idempotent, mode="operation")
api.add_decorator(known_query, mode="operation")
# First: no environment can have these names.
api.add_router("/people", people.router, tags=["people"])
api.add_router("/runbooks", runbooks.router, tags=["runbooks"])
for address, router, tag in (
    ("configuration", configuration.router, "configuration"),
    # Before the tenants: a key may contain slashes, and the longer path must win.
    ("tenants", usage.tenants, "tenants"),
    ("tenants", tenants.router, "tenants"),
    ("templates", limit_templates.router, "configuration"),
    ("edit-freeze", edit_freeze.router, "configuration"),
    ("tiers", tiers.router, "tiers"),
    ("subject-limits", subjects.router, "subject limits"),
    ("dependencies", dependencies.router, "dependencies"),
    ("dependencies", learned.router, "dependencies"),
    ("descriptors", descriptors.router, "descriptors"),
    ("models", models.router, "models"),
    ("accounts", budgets.accounts, "budgets"),
    ("budgets", budgets.router, "budgets"),
    ("breakers", breakers.router, "breakers"),
    ("backlogs", backlogs.router, "backlogs"),
    ("locks", locks.router, "locks"),
    ("descriptor-figures", descriptor_figures.router, "fleet"),
    ("overrides", breakers.overrides, "breakers"),
    ("transitions", breakers.transitions, "breakers"),
    ("servers", servers.router, "fleet"),
    ("fleet", servers.fleet, "fleet"),
    ("series", series.router, "fleet"),
    ("reconciliation", reconciliation.router, "fleet"),
    ("weekly-summary", weekly.router, "fleet"),
    ("alerts", alerts.router, "alerts"),
    ("alert-rules", alert_rules.router, "alerts"),
    ("mutes", mutes.router, "alerts"),
    ("incidents", incidents.router, "incidents"),
    ("markers", markers.router, "incidents"),
    ("receivers", receivers.router, "alerts"),
    ("routes", alert_routes.router, "alerts"),
    ("checklist", checklist.router, "fleet"),
    ("audit", audit.router, "audit"),
    ("drills", drills.router, "fleet"),
    ("schedules", schedules.router, "configuration"),
    ("revisions", revisions.router, "configuration"),
    ("refusals", refusals.router, "refusals"),
    ("error-budgets", error_budgets.router, "refusals"),
    ("costs", costs.router, "fleet"),
    ("counters", counters.router, "subject limits"),
    ("erasures", erasures.router, "refusals"),
    ("requests", change_requests.router, "change requests"),
    ("approvals", change_requests.rule, "change requests"),
    ("agent-tokens", tokens.agents, "tokens"),
    ("api-tokens", tokens.programs, "tokens"),
):
    api.add_router(f"/{{environment}}/{address}", router, tags=[tag])
api.add_router("/{environment}", plans.router, tags=["configuration"])
api.add_router("/{environment}", usage.router, tags=["configuration"])
