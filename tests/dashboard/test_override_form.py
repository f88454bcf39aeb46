"""An override in force can be extended and ended, also from the list of overrides."""

import pytest

pytestmark = pytest.mark.django_db(transaction=True)

PATH = "/breakers/payments-api"
TRIP = {"act": "forced_open", "reason": "CHG-4821 vendor maintenance", "lasts": "15"}
LONGER = {"act": "extend", "reason": "The vendor needs longer", "lasts": "240"}


def holds():
    from controlplane.breakers.models import Override

    return list(Override.objects.filter(ended_at__isnull=True))


def test_an_override_is_extended_in_its_mode(log_in):
    client = log_in("olga")
    client.post(PATH, TRIP)
    [before] = holds()
    answer = client.post(PATH, LONGER | {"seen": str(before.revision)}, follow=True)
    assert "The override on payments-api now ends at" in answer.content.decode()
    [after] = holds()
    assert (after.mode, after.reason) == ("forced_open", "The vendor needs longer")
    assert (after.expires_at - before.expires_at).total_seconds() > 3 * 3600


def test_a_breaker_without_override_cannot_be_extended(log_in):
    answer = log_in("olga").post(PATH, LONGER)
    assert answer.status_code == 422
    assert "This breaker has no override any more." in answer.content.decode()
    assert holds() == []


def test_a_breaker_forced_closed_is_extended_by_minutes_only(log_in):
    client = log_in("olga")
    client.post(PATH, TRIP | {"act": "forced_closed", "confirm": "payments-api"})
    answer = client.post(PATH, LONGER)
    assert answer.status_code == 422
    assert "At most 15 minutes." in answer.content.decode()


def test_the_list_of_overrides_links_to_the_filled_form(log_in):
    client = log_in("olga")
    client.post(PATH, TRIP)
    overview = client.get("/").content.decode()
    for act, button in (("extend", "Extend for 1 h"), ("automatic", "End override")):
        assert f'href="{PATH}?act={act}#override"' in overview
        page = client.get(f"{PATH}?act={act}").content.decode()
        assert f'value="{act}" checked' in page
        assert button in page
    assert len(holds()) == 1
    assert "?act=extend" not in log_in("vera").get("/").content.decode()


def test_without_an_override_the_form_only_offers_to_start_one(log_in):
    page = log_in("olga").get(f"{PATH}?act=extend").content.decode()
    assert 'value="extend"' not in page
    assert "Extend for" not in page


def test_the_button_promises_no_duration_that_forced_closed_does_not_offer(log_in):
    client = log_in("olga")
    for lasts, button in (
        ("15", "Force closed for 15 min"),
        ("60", "Force closed\n"),
        ("until", "Force closed\n"),
    ):
        answer = client.post(f"{PATH}/preview", TRIP | {"act": "forced_closed", "lasts": lasts})
        assert button in answer.content.decode()
