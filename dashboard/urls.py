from django.urls import include, path

from dashboard.views import audit, breakers, overview, people, runbooks, tenants, tokens

urlpatterns = [
    path("", overview.overview, name="overview"),
    path("breakers", breakers.breakers, name="breakers"),
    path("breakers/<str:name>", breakers.breaker, name="breaker"),
    path("breakers/<str:name>/preview", breakers.breaker_preview, name="breaker_preview"),
    path("servers", overview.servers, name="servers"),
    path("tenants", tenants.tenants, name="tenants"),
    # By query, not by path: an id may hold slashes and dots.
    path("tenant", tenants.tenant, name="tenant"),
    path("audit", audit.audit, name="audit"),
    path("runbooks", runbooks.runbooks, name="runbooks"),
    path("runbooks/<str:slug>", runbooks.runbook, name="runbook"),
    path("palette", overview.palette, name="palette"),
    path("people", people.people, name="people"),
    path("people/<str:name>", people.person, name="person"),
    path("tokens", tokens.tokens, name="tokens"),
    path("welcome/<str:link>", people.welcome, name="welcome"),
    path("", include("dashboard.account_urls")),
]
