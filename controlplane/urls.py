from django.urls import include, path

from controlplane.api.api import api
from controlplane.health import healthz, readyz
from controlplane.metrics import metrics

urlpatterns = [
    path("healthz", healthz, name="healthz"),
    path("readyz", readyz, name="readyz"),
    path("metrics", metrics, name="metrics"),
    path("api/v1/", api.urls),
    path("", include("dashboard.urls")),
]

handler403 = "dashboard.views.page.not_allowed"
handler404 = "dashboard.views.page.page_not_found"
