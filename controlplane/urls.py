from django.urls import include, path

from controlplane.api.api import api
from controlplane.health import healthz, readyz

urlpatterns = [
    path("healthz", healthz, name="healthz"),
    path("readyz", readyz, name="readyz"),
    path("api/v1/", api.urls),
    path("", include("dashboard.urls")),
]
