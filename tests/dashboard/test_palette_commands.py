"""The commands that the server offers: by role, and with addresses that lead to a form."""

from typing import Any

import pytest

pytestmark = pytest.mark.django_db(transaction=True)


def ids(client: Any) -> set[str]:
    return {entry["id"] for entry in client.get("/palette").json()["entries"]}


def test_commands_follow_the_role(log_in: Any) -> None:
    viewer = log_in("vera")
    assert not {"form:tenant", "form:money_budget", "page:edit_freeze", "page:drills", "tier:pro"} & ids(
        viewer
    )
    assert viewer.get("/palette").json()["verbs"] == []
    operator = log_in("olga")
    assert [verb["id"] for verb in operator.get("/palette").json()["verbs"]] == [
        "forced_open",
        "forced_closed",
        "extend",
        "automatic",
        "reset",
    ]
    assert "page:edit_freeze" not in ids(operator)
    admin = log_in("ada")
    assert {"form:tenant", "form:budget", "form:money_budget"} <= ids(admin)
    assert {"page:edit_freeze", "page:drills", "tier:pro"} <= ids(admin)


def test_every_command_of_an_admin_leads_to_a_page(log_in: Any) -> None:
    admin = log_in("ada")
    answer = admin.get("/palette").json()
    found = [*answer["entries"], *admin.get("/palette", {"tenants": "acme"}).json()["entries"]]
    addresses = {entry["href"] for entry in found if entry["href"]}
    for verb in answer["verbs"]:
        query = f"?{verb['query']}" if verb.get("query") else ""
        addresses.add(f"/breakers/search{verb.get('path', '')}{query}")
    for address in sorted(addresses):
        assert admin.get(address, follow=True).status_code == 200, address


def test_tenants_need_two_letters_and_are_bounded(log_in: Any) -> None:
    viewer = log_in("vera")
    assert viewer.get("/palette", {"tenants": "a"}).json()["entries"] == []
    found = viewer.get("/palette", {"tenants": "RETAIL"}).json()["entries"]
    assert [entry["id"] for entry in found] == ["tenant:acme-retail"]


@pytest.mark.parametrize(
    ("query", "checked"),
    [
        ("?act=forced_open&lasts=60", {"forced_open", "60"}),
        ("?act=forced_closed&lasts=60", {"forced_closed", "15"}),
        ("?act=extend", {"15"}),
        ("?act=nonsense&lasts=-1", {"15"}),
    ],
)
def test_a_link_fills_in_only_what_the_form_offers(log_in: Any, query: str, checked: set[str]) -> None:
    page = log_in("olga").get(f"/breakers/search{query}")
    form = page.context["form"]
    assert {form["act"].value(), form["lasts"].value()} - {None} == checked
