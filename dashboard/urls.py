from django.urls import include, path

from dashboard.views import (
    audit,
    breakers,
    bulk,
    imports,
    overview,
    people,
    revisions,
    runbooks,
    schedules,
    tenants,
    tokens,
)

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
    path("audit/export", audit.audit_export, name="audit_export"),
    path("runbooks", runbooks.runbooks, name="runbooks"),
    path("runbooks/<str:slug>", runbooks.runbook, name="runbook"),
    path("revisions", revisions.revisions, name="revisions"),
    path("revisions/<int:number>", revisions.revision, name="revision"),
    path("schedules", schedules.schedules, name="schedules"),
    path("import", imports.start, name="import"),
    path("export/<str:form>", imports.export, name="export"),
    path("import/<uuid:draft>", imports.draft, name="draft"),
    path("tenants/bulk", bulk.bulk, name="bulk"),
    path("palette", overview.palette, name="palette"),
    path("people", people.people, name="people"),
    path("people/<str:name>", people.person, name="person"),
    path("tokens", tokens.tokens, name="tokens"),
    path("welcome/<str:link>", people.welcome, name="welcome"),
    path("", include("dashboard.account_urls")),
]
