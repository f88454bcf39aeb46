"""A runbook beside what it is for: ticks of an incident, live values, buttons of forms, commands to copy."""

import re
from typing import Any

import pytest
from django.utils import timezone
from fleet_rows import breaker, put_server
from shown import text_of

from controlplane.alerts.incidents.edits import steps_done
from controlplane.alerts.lifecycle import AlertState
from controlplane.alerts.models import Alert, Incident, IncidentLine
from controlplane.editing import edits
from controlplane.fleet.models import Figures
from controlplane.runbooks.format import ACTIONS, VALUES, read_runbook, step_key
from controlplane.runbooks.shipped import shipped
from dashboard.live.runbook_values import _VALUES
from dashboard.views.runbooks.runbook_html import _FORMS, Drawing, draw_runbook
from tests.dashboard.test_incident_pages import incident, text
from tests.people import SEED

pytestmark = pytest.mark.django_db(transaction=True)
BOOK = "/runbooks/breaker-open"
FIRST = "Read the status page of the dependency, or ask its owner."


def opened(**fields: Any) -> Incident:
    """An incident whose alert names the runbook."""
    row = incident(**fields)
    Alert.objects.filter(incident=row).update(runbook="breaker-open")
    return row


def test_only_a_name_of_a_runbook_is_a_link_to_one() -> None:
    names = ("redis-down.md", ".md", "mailto:ops@example.md", "javascript:x.md", "a b.md")
    body = " ".join(f"[x](<{name}>)" for name in names)
    drawn = draw_runbook(read_runbook(body), Drawing())
    assert re.findall(r'href="([^"]*)"', drawn) == [
        "/runbooks/redis-down",
        ".md",
        "mailto:ops@example.md",
        "a%20b.md",
    ]


def test_the_usual_latency_of_redis_is_that_of_this_fleet(log_in: Any) -> None:
    """The runbook said 5 ms and 1 ms, and the board 20 ms and 4 ms."""
    edits.set_tuning(
        environment="production", tuning={"store_deadline_us": 50_000}, reason="for a test", actor=SEED
    )
    page = text_of(text(log_in("olga"), "/runbooks/redis-slow"))
    assert "Usual p99: at most 10 ms. A decision waits at most 50 ms." in page
    assert "Redis p99 is below 10 ms for 5 minutes." in page


def test_an_incident_has_the_words_of_its_own_page(log_in: Any) -> None:
    """It was "quiet", and "payments-api is open", while its page said that it was open and recovers."""
    row, olga = opened(), log_in("olga")
    steps = f"Steps of incident {row.pk}: payments-api"
    assert f"{steps} is open. Active" in text_of(text(olga, BOOK))
    Alert.objects.update(state=AlertState.RECOVERING, clear_since=timezone.now())
    assert f"{steps} was open. Recovering" in text_of(text(olga, BOOK))
    assert f"{row.pk}: payments-api was open" in text_of(text(olga, "/runbooks/redis-slow"))


def tick(row: Incident, done: str = "1", words: str = FIRST) -> dict[str, str]:
    return {"tick": f"{row.pk}:{step_key(words)}:{done}"}


def test_a_step_is_ticked_during_the_incident_and_is_in_its_timeline(log_in: Any) -> None:
    row, olga = opened(), log_in("olga")
    page = text(olga, BOOK)
    assert f'href="/incidents/{row.pk}"' in page
    assert "0 of 4 steps done" in page
    assert "3 more are only for a case: each begins with a question." in page
    assert f'value="{row.pk}:{step_key(FIRST)}:1"' in page
    answer = olga.post(BOOK, tick(row))
    assert answer["location"] == f"{BOOK}?incident={row.pk}#step-{step_key(FIRST)}"
    page = text(olga, f"{BOOK}?incident={row.pk}")
    assert "1 of 4 steps done" in page
    assert re.search(r'class="by">olga, \d\d:\d\d:\d\d UTC', page)
    assert FIRST in text(olga, f"/incidents/{row.pk}")
    assert IncidentLine.objects.get().runbook == "breaker-open"
    olga.post(BOOK, tick(row))
    assert IncidentLine.objects.count() == 1, "sent twice, it is noted once"
    olga.post(BOOK, tick(row, "0"))
    assert steps_done(row, "breaker-open") == {}


def test_a_step_that_was_changed_meanwhile_is_not_ticked(log_in: Any) -> None:
    row, olga = opened(), log_in("olga")
    answer = olga.post(BOOK, tick(row, words="Restart every pod"))
    assert answer.status_code == 422
    assert "The runbook was changed" in answer.content.decode()
    assert olga.post(BOOK, {"tick": f"4711:{step_key(FIRST)}:1"}).status_code == 404
    assert olga.post(BOOK, {}).status_code == 422
    assert not IncidentLine.objects.exists()


def test_the_incident_from_which_a_person_came_keeps_the_ticks(log_in: Any) -> None:
    first, other = opened(), incident("lag", text="3 pods have old configuration")
    olga = log_in("olga")
    page = text(olga, f"{BOOK}?incident={other.pk}")
    assert f'value="{other.pk}:{step_key(FIRST)}:1"' in page
    assert f'href="{BOOK}?incident={first.pk}"' in page, "the other open one can be chosen"
    for odd in ("x", "9" * 30, "-1", "4711"):
        assert f'value="{first.pk}:{step_key(FIRST)}:1"' in text(olga, f"{BOOK}?incident={odd}")


def test_without_an_incident_nothing_can_be_ticked(log_in: Any) -> None:
    page = text(log_in("olga"), BOOK)
    assert "No incident is open for this runbook" in page
    assert 'form="ticks"' not in page
    assert page.count(" disabled></button>") == 7


def test_a_viewer_reads_ticks_and_sees_no_button_that_the_role_does_not_permit(log_in: Any) -> None:
    row = opened()
    page = text(log_in("vera"), f"{BOOK}?of=payments-api")
    assert 'form="ticks"' not in page
    assert "Force open: payments-api: your role does not permit this." in page
    assert "data-action" not in page
    assert log_in("vera").post(BOOK, tick(row)).status_code == 403


def test_values_and_buttons_are_of_the_dependency_of_the_alert(log_in: Any) -> None:
    put_server("web-1", breakers=[breaker("payments-api", "open", generation=3), breaker("search")])
    row, olga = opened(), log_in("olga")
    alerts = text(olga, "/alerts")
    # A card has the runbook of what is true now.
    assert re.search(rf'href="/runbooks/[\w-]+\?incident={row.pk}&amp;of=payments-api"', alerts)
    page = text(olga, f"{BOOK}?incident={row.pk}")
    assert 'href="/breakers/payments-api?act=forced_open#override"' in page
    assert 'href="/breakers/payments-api?act=reset#override"' in page
    assert re.search(r'data-value="breaker_state">open', page)
    page = text(olga, f"{BOOK}?of=search")
    assert re.search(r'data-value="breaker_state">closed', page)
    page = text(olga, f"{BOOK}?of=no-such-thing")
    assert 'class="value unknown" data-value="breaker_state">unknown' in page
    assert 'href="/breakers"' in page


def test_the_owner_of_a_dependency_is_known_without_a_gateway(log_in: Any) -> None:
    put_server("web-1", breakers=[breaker("payments-api", "open")])
    olga = log_in("olga")
    Figures.objects.all().delete()
    page = text(olga, "/runbooks/backlog-full?of=payments-api")
    assert 'class="value" data-value="owner">' in page
    assert 'class="value unknown" data-value="breaker_state">unknown' in text(olga, f"{BOOK}?of=payments-api")


def test_a_runbook_opened_from_the_list_offers_the_dependencies_it_is_about(log_in: Any) -> None:
    client = log_in("olga")
    page = client.get("/runbooks/breaker-open").content.decode()
    assert "Choose a dependency to see its values" in page
    assert 'href="/runbooks/breaker-open?of=payments-api"' in page
    chosen = client.get("/runbooks/breaker-open?of=payments-api").content.decode()
    assert "Choose a dependency" not in chosen
    assert "Choose a dependency" not in client.get("/runbooks/postgres-down").content.decode()


def test_the_part_that_is_read_again_has_no_token_and_the_same_query(log_in: Any) -> None:
    row, olga = opened(), log_in("olga")
    page = text(olga, f"{BOOK}?incident={row.pk}&of=search")
    assert f'hx-get="{BOOK}/now?incident={row.pk}&amp;of=search"' in page
    now = text(olga, f"{BOOK}/now?incident={row.pk}&of=search")
    assert now.strip().startswith("<section")
    assert "csrf" not in now
    assert log_in("olga").get("/runbooks/none/now").status_code == 404


def test_the_runbook_on_the_page_of_a_breaker_is_read_again_with_the_time_of_its_values(log_in: Any) -> None:
    put_server("web-1", breakers=[breaker("payments-api", "open", generation=3)])
    olga = log_in("olga")
    olga_page = text(olga, "/breakers/payments-api")
    assert 'hx-get="/breakers/payments-api/runbook"' in olga_page
    now = text(olga, "/breakers/payments-api/runbook")
    assert now.strip().startswith('<section class="panel" id="runbook"')
    assert re.search(r"values at \d\d:\d\d:\d\d UTC", text_of(now))
    assert "csrf" not in now
    assert olga.get("/breakers/none/runbook").status_code == 404


def test_every_command_has_a_button_that_copies_it(log_in: Any) -> None:
    page = text(log_in("vera"), "/runbooks/redis-split")
    commands = re.findall(r'<code id="(command-\d+)">', page)
    assert len(commands) == 5
    assert re.findall(r'data-copies="(command-\d+)"', page) == commands
    assert "sentinel get-master-addr-by-name mymaster</code>" in page


def test_links_lead_to_other_runbooks_of_the_environment(log_in: Any) -> None:
    assert 'href="/runbooks/redis-busy"' in text(log_in("vera"), "/runbooks/redis-slow")


@pytest.mark.parametrize("slug", shipped())
def test_every_shipped_runbook_opens(log_in: Any, slug: str) -> None:
    answer = log_in("olga").get(f"/runbooks/{slug}")
    assert answer.status_code == 200
    page = answer.content.decode()
    assert "{{" not in page.partition('id="now"')[2]
    assert "```" not in page


def test_every_value_and_every_action_of_the_closed_lists_has_its_code() -> None:
    assert set(_VALUES) == set(VALUES)
    assert set(_FORMS) == set(ACTIONS)


def test_the_list_of_runbooks_has_no_value_without_its_figure(log_in: Any, production: str) -> None:
    """It displayed {{ value "redis_usual" }}."""
    assert "{{" not in log_in("vera").get("/runbooks").content.decode()
