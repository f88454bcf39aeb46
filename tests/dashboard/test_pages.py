"""Pages and forms over plain HTTP: what works without a script, and what is rejected."""

from datetime import UTC, datetime, timedelta

import pytest
from django.template.loader import get_template

from tests.dashboard.editor_steps import base_of, page
from tests.dashboard.shown import text_of
from tests.people import PASSWORD, SEED, create_person
from tests.tenants import create_tenants

pytestmark = pytest.mark.django_db(transaction=True)

PAGES = (
    "/",
    "/breakers",
    "/breakers/payments-api",
    "/breakers/payments-api/history",
    "/servers",
    "/tenants",
    "/tenant?key=acme-retail",
    "/audit",
)
PAGES += ("/runbooks", "/runbooks/payment-provider-timeouts", "/palette")
TRIP = {"act": "forced_open", "reason": "CHG-4821 vendor maintenance", "lasts": "60"}


def overrides():
    from controlplane.breakers.models import Override

    return list(Override.objects.filter(ended_at__isnull=True))


def test_the_column_of_limits_explains_each_of_its_words() -> None:
    """It explained three of six."""
    source = get_template("dashboard/servers.html").template.source
    words = text_of(source.partition("What Limits says")[2])
    for one in ("exact", "shared", "some local", "ramping up", "without Redis", "unknown"):
        assert f"{one}: " in words, one


@pytest.mark.parametrize("path", PAGES)
def test_anonymous_visitors_are_redirected_to_the_login_page(client, production, path):
    answer = client.get(path)
    assert answer.status_code == 302
    assert answer["Location"].startswith("/login?next=")


@pytest.mark.parametrize("path", PAGES)
def test_every_role_may_view_every_page(log_in, path):
    for name in ("vera", "olga", "ada"):
        answer = log_in(name).get(path)
        assert answer.status_code == 200
        assert "default-src 'none'" in answer["Content-Security-Policy"]


def test_a_wrong_password_is_reported_and_the_name_kept(client, production):
    answer = client.post("/login", {"username": "vera", "password": "wrong"})
    assert answer.status_code == 422
    assert 'value="vera"' in answer.content.decode()
    assert "No account has this name and password" in answer.content.decode()


def test_login_leads_to_the_requested_page_and_never_off_site(client, production):
    who = {"username": "vera", "password": PASSWORD}
    assert client.post("/login?next=/servers", who | {"next": "/servers"})["Location"] == "/servers"
    client.post("/logout")
    assert client.post("/login", who | {"next": "https://elsewhere.example/"})["Location"] == "/"


def test_an_override_without_a_script_returns_to_the_breaker_page(log_in):
    client = log_in("olga")
    answer = client.post("/breakers/payments-api", TRIP)
    assert (answer.status_code, answer["Location"]) == (302, "/breakers/payments-api")
    [held] = overrides()
    assert (held.mode, held.actor, held.reason) == ("forced_open", "olga", "CHG-4821 vendor maintenance")
    shown = client.get("/breakers/payments-api").content.decode()
    assert "Forced open" in shown
    assert "payments-api is forced open until" in shown


def test_viewers_see_no_form_and_are_refused(log_in):
    client = log_in("vera")
    assert (
        "Operators can override or reset this breaker"
        in client.get("/breakers/payments-api").content.decode()
    )
    assert client.post("/breakers/payments-api", TRIP).status_code == 403
    assert client.post("/breakers/payments-api/preview", TRIP).status_code == 403
    assert client.post("/edit/tenant?key=acme-retail", {"limit.requests.limit": "1"}).status_code == 403
    assert overrides() == []


def test_operators_may_not_change_quotas(log_in):
    client = log_in("olga")
    assert "/edit/tenant" not in client.get("/tenant?key=acme-retail").content.decode()
    assert client.post("/edit/tenant?key=acme-retail", {"limit.requests.limit": "1"}).status_code == 403


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"reason": "short"}, "Say why, in 8 characters or more"),
        ({"reason": " " * 20}, "Say why, in 8 characters or more"),
        ({"lasts": ""}, "Choose a duration"),
        ({"act": ""}, "Choose an action"),
        ({"act": "explode"}, "Select a valid choice"),
        ({"lasts": "until", "until": ""}, "Enter a date and a time"),
        ({"lasts": "until", "until": "2020-01-01T00:00"}, "Choose a time in the future"),
        ({"lasts": "until", "until": "2999-01-01T00:00"}, "Choose a time at most 24 hours"),
        ({"act": "forced_closed", "lasts": "15"}, "Type payments-api exactly"),
        ({"act": "forced_closed", "lasts": "60", "confirm": "payments-api"}, "at most 15 minutes"),
        ({"act": "automatic"}, "This breaker has no override any more"),
    ],
)
def test_a_refused_override_names_the_field_and_keeps_what_was_typed(log_in, changed, said):
    typed = TRIP | changed
    answer = log_in("olga").post("/breakers/payments-api", typed)
    page = answer.content.decode()
    assert answer.status_code == 422
    assert said in page
    assert f">{typed['reason']}</textarea>" in page
    if changed.get("act", "forced_open") in ("forced_open", "forced_closed", "automatic"):
        assert "Choose an action" not in page
    assert overrides() == []


def test_an_override_lasts_until_a_typed_utc_time(log_in):
    until = datetime.now(UTC).replace(second=0, microsecond=0) + timedelta(hours=2)
    typed = TRIP | {"lasts": "until", "until": until.strftime("%Y-%m-%dT%H:%M")}
    assert log_in("olga").post("/breakers/payments-api", typed).status_code == 302
    assert overrides()[0].expires_at == until


def test_a_concurrent_override_is_displayed_before_it_is_replaced(log_in):
    assert log_in("ada").post("/breakers/payments-api", TRIP | {"seen": "0"}).status_code == 302
    mine = TRIP | {"seen": "0", "reason": "My own reason, typed slowly"}
    answer = log_in("olga").post("/breakers/payments-api", mine)
    page = answer.content.decode()
    assert answer.status_code == 409
    assert "While you were typing, ada set payments-api to forced open until" in page
    assert "My own reason, typed slowly" in page
    [held] = overrides()
    assert held.actor == "ada"
    again = log_in("olga").post("/breakers/payments-api", mine | {"seen": str(held.revision)})
    assert again.status_code == 302
    assert overrides()[0].actor == "olga"


def test_automatic_ends_an_override_and_reset_is_audited(log_in):
    from controlplane.audit.models import Entry

    client = log_in("olga")
    client.post("/breakers/payments-api", TRIP)
    assert (
        client.post("/breakers/payments-api", {"act": "automatic", "reason": "Vendor is back"}).status_code
        == 302
    )
    assert overrides() == []
    assert (
        client.post("/breakers/payments-api", {"act": "reset", "reason": "Vendor is back"}).status_code == 302
    )
    assert list(Entry.objects.order_by("-id").values_list("action", flat=True)[:3]) == [
        "breaker.reset",
        "breaker.released",
        "breaker.held",
    ]
    page = client.get("/audit").content.decode()
    assert page.index("Breaker reset") < page.index("Override ended") < page.index("Override set")


def test_the_preview_displays_the_effect_and_does_nothing(log_in):
    client = log_in("olga")
    page = client.post("/breakers/payments-api/preview", TRIP).content.decode()
    assert "3 pods stop calling payments-api" in page
    assert "20 calls/s get the fallback: order queue." in page
    assert "Force open for 1 h" in page
    assert overrides() == []


def test_tenants_are_searched_and_paged_by_the_server(log_in):
    client = log_in("vera")
    many = [(f"shop-{i:03d}", "free", f"Shop {i}") for i in range(120)]
    create_tenants(tenants=many, actor=SEED)
    page = client.get("/tenants").content.decode()
    assert "shop-048" in page
    assert "shop-049" not in page
    last = client.get("/tenants?after=shop-098").content.decode()
    assert "shop-119" in last
    assert "Next</a>" not in last
    back = client.get("/tenants?before=shop-099").content.decode()
    assert ("shop-049" in back, "shop-048" in back, "shop-099" in back) == (True, False, False)
    found = client.get("/tenants?q=shop-11").content.decode()
    assert "10 found" in found
    assert "acme-retail" not in found
    for odd in ("/tenants?before=zzz&after=aaa", "/tenants?before=0", "/tenants?page=٣"):
        assert client.get(odd).status_code == 200
    for unreadable in ("/tenants?after=%00", "/tenants?q=%00"):
        assert client.get(unreadable).status_code == 400


@pytest.mark.parametrize("key", ["a/b", "../x", "a&b=c", "ü ñ", "<b>", "a.b", "?", "%2e"])
def test_a_tenant_may_have_any_name(log_in, key):
    from urllib.parse import quote

    from controlplane.editing import edits

    client = log_in("ada")
    edits.create_tenant(environment="production", tenant=key, tier="pro", reason="for a test", actor=SEED)
    address = f"/tenant?key={quote(key, safe='')}"
    assert address.replace("&", "&amp;") in client.get("/tenants").content.decode()
    editor = f"/edit{address}"
    typed = {"base": base_of(page(client.get(editor))), "limit.requests.limit": "7", "reason": "for a test"}
    assert client.post(editor, typed).status_code == 302
    assert "<b></h1>" not in client.get(address).content.decode()


def test_audit_filters_are_in_the_address(log_in):
    client = log_in("ada")
    client.post("/breakers/payments-api", TRIP)
    people = client.get("/audit?by=people").content.decode()
    assert "CHG-4821" in people
    assert "for a test" not in people
    assert "CHG-4821" not in client.get("/audit?by=programs").content.decode()
    assert "CHG-4821" in client.get("/audit?q=chg-48&period=1h&kind=dependency").content.decode()
    assert "No entries match these filters" in client.get("/audit?q=nothing-like-it").content.decode()
    for odd in ("/audit?before=x", "/audit?before=" + "9" * 40, "/audit?period=zz&kind=zz&by=zz&q=x"):
        assert client.get(odd).status_code == 200
    assert client.get("/audit?q=%00").status_code == 400


def test_a_runbook_is_displayed_with_its_markup_inert(log_in):
    page = log_in("vera").get("/breakers/payments-api").content.decode()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<script>alert" not in page
    assert 'href="javascript:' not in page
    assert 'href="https://status.example"' in page


@pytest.mark.parametrize(
    "path",
    ["/breakers/nobody", "/tenant", "/runbooks/none", "/nowhere"],
)
def test_what_does_not_exist_is_404_with_a_message(log_in, path):
    answer = log_in("vera").get(path)
    assert answer.status_code == 404
    assert "Fuseboard" in answer.content.decode()


def test_an_htmx_edit_is_answered_with_the_fragment_alone(log_in):
    client = log_in("olga")
    answer = client.post("/breakers/payments-api", TRIP, headers={"HX-Request": "true"})
    page = answer.content.decode()
    assert answer.status_code == 200
    assert page.lstrip().startswith('<section class="panel" id="override"')
    assert "payments-api is forced open until" in page
    assert "<html" not in page


def test_an_unknown_theme_is_ignored(log_in):
    client = log_in("vera")
    client.cookies["theme"] = "light"
    assert 'data-theme="light"' in client.get("/").content.decode()
    client.cookies["theme"] = '"><script>'
    assert 'data-theme="dark"' in client.get("/").content.decode()


@pytest.mark.parametrize(
    "path", ["/", "/breakers", "/servers", "/tenants", "/audit", "/runbooks", "/palette"]
)
def test_an_empty_installation_has_pages_too(client, transactional_db, path):
    client.force_login(create_person("ada"))
    answer = client.get(path)
    assert answer.status_code == 200
    if path == "/":
        assert "No dependency is registered yet." in answer.content.decode()


def test_changes_read_as_sentences():
    from controlplane.audit.action_words import action_verb, action_words, target_words
    from dashboard.words.labels import count_words, difference

    before = {"quotas.requests.limit": 500, "quotas.requests.burst": 5, "version": 1, "tier": "pro"}
    after = before | {"quotas.requests.limit": 600, "version": 2}
    assert difference(before, after) == ("requests limit 500", "requests limit 600")
    held = {"override.mode": "forced_open", "override.expires_at": "2026-11-20T14:39:08+00:00"}
    assert difference(None, held) == ("", "forced open, until 20 Nov 14:39 UTC")
    assert difference(held, None) == ("forced open, until 20 Nov 14:39 UTC", "")
    assert (action_words("tenant_quota.set"), action_verb("breaker.held")) == (
        "Quota changed",
        "set an override on",
    )
    assert target_words("#7 tenants.changed production") == "7, change tenants, production"
    assert target_words("#7 tenant_quota.set acme retail") == "7, change a quota, acme retail"
    assert count_words("dependency.changed", 2) == "2 dependencies changed"
    assert count_words("tier.created", 1) == "1 tier created"
    assert (action_words("moon.painted_blue"), action_verb("moon.painted")) == (
        "Moon painted blue",
        "painted moon",
    )


@pytest.mark.parametrize("path", ["/", "/breakers", "/breakers/payments-api", "/servers"])
def test_without_postgres_pages_display_what_was_last_known(log_in, monkeypatch, path):
    from django.db import OperationalError

    from controlplane.status.read_facts import read_facts
    from dashboard.hub import hub

    client = log_in("vera")
    known = hub.of("production")
    monkeypatch.setattr(known, "facts", read_facts())

    def unavailable(environment):
        raise OperationalError("connection refused")

    monkeypatch.setattr("dashboard.views.page.read_facts", unavailable)
    monkeypatch.setattr("controlplane.status.without_postgres.time.time", lambda: known.facts.as_of + 60)
    page = client.get(path)
    assert page.status_code == 200
    assert "Postgres is unavailable" in page.content.decode()
