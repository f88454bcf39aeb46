"""Routes by API: ordered, replaced, previewed, and removed."""

import pytest

from tests.controlplane.alerts.delivery.test_alert_deliveries import receiver
from tests.controlplane.calling import API, problem, send, token_of

pytestmark = pytest.mark.django_db(transaction=True)
WHY = {"reason": "the team has a chat"}


def test_an_admin_orders_routes_and_previews_them(production: str) -> None:
    token = token_of("admin")
    receiver("chat"), receiver("pager")
    day = {"begins": "09:00", "ends": "17:00", "receivers": ["chat"], **WHY}
    assert send(token, "PUT", f"{API}/routes/day", day).status_code == 200
    send(token, "PUT", f"{API}/routes/urgent", {"least_level": 3, "receivers": ["pager"], "place": 1, **WHY})
    found = send(token, "GET", f"{API}/routes").json()
    assert [row["name"] for row in found["routes"]] == ["urgent", "day", "default"]
    assert (found["routes"][1]["begins"], found["routes"][2]["receivers"]) == ("09:00", [])
    assert found["warnings"] == [
        "No message reached chat, pager in 30 days. Test them on the page Receivers."
    ]
    plan = send(token, "GET", f"{API}/routes/preview?rule=local").json()
    assert plan["route"] in ("day", "default")
    assert {"receiver": "chat", "refusal": ""} in plan["steps"][0]["receivers"]
    problem(send(token, "GET", f"{API}/routes/preview?rule=none"), 422)
    problem(send(token, "PUT", f"{API}/routes/day", day | {"zone": "Mars/Olympus"}), 422)
    problem(send(token, "DELETE", f"{API}/routes/default?reason=for+a+test"), 422)
    assert send(token, "DELETE", f"{API}/routes/day?reason=for+a+test").status_code == 200
    problem(send(token, "DELETE", f"{API}/routes/day?reason=for+a+test"), 404)
    problem(send(token_of("operator"), "PUT", f"{API}/routes/day", day), 403)
