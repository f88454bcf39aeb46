"""The REST API, ``/api/v1/``; described at ``/api/v1/docs``."""

from typing import Any

from csp.decorators import csp_update
from django.contrib.auth.decorators import login_required
from ninja import NinjaAPI, Swagger
from ninja.openapi.schema import OpenAPISchema

from controlplane.accounts.permissions import View
from controlplane.api import audit, breakers, servers, subjects, tenants, tiers
from controlplane.api.auth import needs
from controlplane.api.parsing import StrictParser
from controlplane.api.problems import RESPONSE, install


def _documentation(view: View) -> View:
    # The page's stylesheet has its icons as data.
    shown: View = login_required(csp_update({"img-src": ["data:"]})(view))
    return shown


class Described(NinjaAPI):
    """Describes the problems as well, which every operation has in common."""

    def get_openapi_schema(self, **options: Any) -> OpenAPISchema:
        schema = super().get_openapi_schema(**options)
        for operations in schema["paths"].values():
            for operation in operations.values():
                operation["responses"]["default"] = RESPONSE
        return schema


api = Described(
    title="Fuseboard",
    version="1",
    description="Errors are application/problem+json. Writes need a reason, and where a version is given,"
    " If-Match or expected_version: 409 says what somebody else changed meanwhile.",
    urls_namespace="api",
    auth=needs("view"),
    parser=StrictParser(),
    docs=Swagger(settings={"validatorUrl": None}),
    docs_decorator=_documentation,
)
install(api)
api.add_router("/{environment}/tenants", tenants.router, tags=["tenants"])
api.add_router("/{environment}/tiers", tiers.router, tags=["tiers"])
api.add_router("/{environment}/subject-limits", subjects.router, tags=["subject limits"])
api.add_router("/{environment}/breakers", breakers.router, tags=["breakers"])
api.add_router("/{environment}/overrides", breakers.overrides, tags=["breakers"])
api.add_router("/{environment}/servers", servers.router, tags=["servers"])
api.add_router("/{environment}/audit", audit.router, tags=["audit"])
