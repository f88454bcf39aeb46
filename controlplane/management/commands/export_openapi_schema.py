"""Print the OpenAPI document: ``python manage.py export_openapi_schema --output openapi.json``."""

from ninja import NinjaAPI
from ninja.management.commands import export_openapi_schema


class Command(export_openapi_schema.Command):
    help = "Prints the OpenAPI document of the API, as /api/v1/openapi.json serves it."

    def _get_api_instance(self, api_path: str | None = None) -> NinjaAPI:
        # ninja looks for the API at /api/, and ours is at /api/v1/.
        return super()._get_api_instance(api_path or "controlplane.api.api.api")
