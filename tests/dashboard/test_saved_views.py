"""Saved views: only lists of this site are saved, each person has their own, and sharing needs a role."""

from typing import Any

import pytest
from django.urls import reverse

from controlplane.accounts import saved_views as edits
from controlplane.accounts.models import SavedView
from controlplane.audit.models import Entry
from dashboard.tables.saved_views import LISTS
from dashboard.views.refusals.refusal_log import FILTERS
from tests.people import OLGA, VERA

pytestmark = pytest.mark.django_db(transaction=True)


def save(client: Any, address: str, name: str = "mine", **more: str) -> Any:
    return client.post("/views", {"act": "save", "address": address, "name": name, **more})


def saved(name: str = "mine", *, actor: Any = VERA, shared: bool = False, **query: str) -> SavedView:
    return edits.save_view(
        environment="production", name=name, page="tenants", query=query, shared=shared, actor=actor
    )


def error(answer: Any, field: str) -> str:
    assert answer.status_code == 422
    return " ".join(answer.context["errors"][field])


def test_a_list_is_saved_without_its_place_and_opens_in_one_click(log_in: Any) -> None:
    client = log_in("vera")
    answer = save(client, "/tenants?tier=pro&sort=-tenant&after=b&saved=3", "Pro tenants")
    assert answer["Location"] == "/tenants?sort=-tenant&tier=pro"
    page = client.get(answer["Location"]).content.decode()
    assert 'aria-current="true" href="/tenants?sort=-tenant&amp;tier=pro">Pro tenants</a>' in page
    assert "Pro tenants" not in client.get("/breakers").content.decode()
    entries = client.get("/palette").json()["entries"]
    found = [entry["href"] for entry in entries if entry["name"] == "Pro tenants"]
    assert found == ["/tenants?sort=-tenant&tier=pro"]


def test_an_address_of_this_site_is_taken_with_its_host(log_in: Any) -> None:
    client = log_in("vera")
    assert save(client, "http://testserver/servers?state=silent&load.sort=-pod", "a").status_code == 302
    assert save(client, "http://evil.example/servers", "b").status_code == 422
    assert SavedView.objects.get().query == {"state": "silent", "load.sort": "-pod"}


@pytest.mark.parametrize(
    ("address", "part"),
    [
        ("", "not a list"),
        ("https://evil.example/tenants", "an address of this site"),
        ("//evil.example/tenants", "an address of this site"),
        ("javascript:alert(1)", "an address of this site"),
        ("/breakers/payments-api", "not a list"),
        ("/api/v1/production/tenants", "not a list"),
        ("/people", "not a list"),
        ("/nowhere", "not a list"),
        ("/env/staging/tenants", "of environment staging"),
        ("http://[", "not a list"),
        ("/tenants?csv=h-t", "no filter 'csv'"),
        ("/tenants?q=%00", "control characters"),
        ("/tenants?" + "&".join(f"t{n}.q=1" for n in range(21)), "at most 20 filters"),
        ("/tenants?q=" + "x" * 301, "at most 20 filters of 300"),
    ],
)
def test_no_other_address_is_saved(log_in: Any, address: str, part: str) -> None:
    answer = save(log_in("vera"), address, "kept")
    assert part in error(answer, "address")
    # What was typed is still in the form.
    assert 'value="kept"' in answer.content.decode()
    assert not SavedView.objects.exists()


def test_the_form_takes_the_address_that_the_browser_had(log_in: Any) -> None:
    client = log_in("vera")
    linked = {"address": "/breakers"}
    # Filters of a live list change the address in the browser only, which names it in this header.
    came = client.get("/views", linked, headers={"referer": "http://testserver/breakers?state=open&q=pay"})
    assert came.context["address"] == "/breakers?state=open&q=pay"
    strange = client.get("/views", linked, headers={"referer": "http://evil.example/breakers?state=open"})
    assert strange.context["address"] == "/breakers"


def test_a_person_has_a_bounded_number_of_views(log_in: Any) -> None:
    client = log_in("vera")
    for number in range(edits.MAX_VIEWS):
        saved(f"view {number}")
    assert "Delete one first" in error(save(client, "/audit"), "name")
    client.post("/views", {"act": "delete", "view": str(SavedView.objects.first().pk)})  # type: ignore[union-attr]
    assert save(client, "/audit").status_code == 302
    page = client.get("/tenants").content.decode()
    assert page.count('aria-current="true" href="/tenants">') == 8
    assert "All views" in page


def test_an_environment_has_a_bounded_number_of_shared_views(
    log_in: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edits, "MAX_SHARED", 1)
    client = log_in("olga")
    assert save(client, "/audit", "one", shared="on").status_code == 302
    assert "Stop sharing one first" in error(save(client, "/audit", "two", shared="on"), "shared")


def test_a_name_is_used_once(log_in: Any) -> None:
    client = log_in("vera")
    one = saved("one")
    saved("two")
    assert "have a view with this name" in error(save(client, "/audit", "one"), "name")
    renamed = client.post("/views", {"act": "change", "view": str(one.pk), "name": "two"})
    assert "have a view with this name" in error(renamed, "name")
    assert "Enter a name" in error(save(client, "/audit", "  "), "name")
    assert save(log_in("olga"), "/audit", "one").status_code == 302


def test_sharing_is_for_operators_and_recorded(log_in: Any) -> None:
    viewer = log_in("vera")
    assert save(viewer, "/audit", shared="on").status_code == 403
    mine = saved()
    change = {"act": "change", "view": str(mine.pk), "name": "mine", "shared": "on"}
    assert viewer.post("/views", change).status_code == 403
    assert not Entry.objects.filter(action__startswith="view.").exists()
    operator = log_in("olga")
    save(operator, "/tenants?state=suspended", "Suspended", shared="on")
    view = SavedView.objects.get(name="Suspended")
    change = {"act": "change", "view": str(view.pk), "name": "Suspended tenants", "shared": "on"}
    assert operator.post("/views", change).status_code == 302
    assert "Suspended tenants" in log_in("vera").get("/tenants").content.decode()
    assert log_in("ada").post("/views", {"act": "unshare", "view": str(view.pk)}).status_code == 302
    assert "Suspended tenants" not in log_in("vera").get("/tenants").content.decode()
    assert "Suspended tenants" in log_in("olga").get("/tenants").content.decode()
    noted = Entry.objects.filter(action__startswith="view.").order_by("id").values_list("action", "actor")
    assert list(noted) == [("view.shared", "olga"), ("view.changed", "olga"), ("view.unshared", "ada")]
    # A private view is its owner's business.
    log_in("olga").post("/views", {"act": "delete", "view": str(view.pk)})
    assert not Entry.objects.filter(action="view.deleted").exists()


def test_an_owner_who_may_not_share_any_more_can_rename_and_stop_sharing(log_in: Any) -> None:
    from controlplane.accounts.models import User

    view = saved("ours", actor=OLGA, shared=True)
    User.objects.filter(username="olga").update(role="viewer")
    client = log_in("olga")
    change = {"act": "change", "view": str(view.pk), "name": "renamed", "shared": "on"}
    assert client.post("/views", change).status_code == 302
    del change["shared"]
    assert client.post("/views", change).status_code == 302
    assert client.post("/views", {**change, "shared": "on"}).status_code == 403


def test_the_view_of_another_person_cannot_be_changed(log_in: Any) -> None:
    view = saved("hers", actor=OLGA, shared=True)
    for who in ("vera", "ada"):
        client = log_in(who)
        for act in ("change", "delete"):
            answer = client.post("/views", {"act": act, "view": str(view.pk), "name": "taken"})
            assert answer.status_code == 404
    assert SavedView.objects.get().name == "hers"
    private = saved("private", actor=OLGA)
    assert log_in("ada").post("/views", {"act": "unshare", "view": str(private.pk)}).status_code == 404
    assert "private" not in {entry["name"] for entry in log_in("ada").get("/palette").json()["entries"]}


def test_every_list_can_be_opened_by_a_viewer(log_in: Any) -> None:
    client = log_in("vera")
    assert LISTS["refusals"][1] == ("range", *FILTERS)
    for page in LISTS:
        saved_at = client.get("/views", {"address": reverse(page)}).context["address"]
        answer = save(client, saved_at, page)
        assert client.get(answer["Location"]).context["views"]["shown"][0].name == page


def test_a_view_belongs_to_its_environment(log_in: Any) -> None:
    from controlplane.editing import edits as configuration

    configuration.create_environment(environment="staging", reason="for a test", actor=OLGA)
    client = log_in("vera")
    typed = {"act": "save", "address": "/env/staging/breakers?state=open", "name": "there"}
    answer = client.post("/env/staging/views", typed)
    assert answer["Location"] == "/env/staging/breakers?state=open"
    assert "there" in {one.name for one in client.get("/env/staging/breakers").context["views"]["shown"]}
    assert client.get("/breakers").context["views"]["shown"] == []
    assert error(client.post("/env/staging/views", {**typed, "address": "/breakers"}), "address")


def test_a_view_is_saved_from_a_further_page(log_in: Any) -> None:
    client = log_in("vera")
    address = "/changes?kind=edit&displayed=12"
    offered = client.get(address).content.decode()
    assert "address=%2Fchanges%3Fkind%3Dedit" in offered
    assert "displayed%3D" not in offered
    save(client, address)
    assert SavedView.objects.get().query == {"kind": "edit"}


def test_views_that_cannot_be_read_are_not_called_missing(log_in: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("dashboard.views.people.saved_views.views_of", lambda _: None)
    page = log_in("vera").get("/views").content.decode()
    assert "cannot be read while Postgres is unavailable" in page
    assert "None yet" not in page
