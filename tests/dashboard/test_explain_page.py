"""The page that explains the token of a refusal."""

import msgspec
import pytest
from django.utils import timezone

from controlplane.accounts.models import User
from controlplane.editing import edits
from controlplane.policies.models import Environment
from controlplane.refusals.keys import day_at, key_of
from controlplane.refusals.models import RefusalService
from controlplane.refusals.tries import MAX_TRIES
from fuseboard.contract.refusal_token import TokenContent, make_token
from fuseboard.contract.words import Mode, Reason
from tests.people import BOB

pytestmark = pytest.mark.django_db(transaction=True)

WHY = {"environment": "production", "reason": "raised for launch"}


@pytest.fixture
def token(production):
    now = timezone.now()
    RefusalService.objects.create(environment="production", service="shop", last_on=now.date())
    refused = TokenContent(
        at_ms=int(now.timestamp() * 1000),
        number=7,
        revision=Environment.objects.get(pk="production").revision,
        reason=Reason.QUOTA,
        mode=Mode.SHARED,
        rule="requests",
        tenant="acme-retail",
        server="web-1",
        retry_after_ms=12_400,
    )

    def made(environment="production", **fields):
        key = key_of(environment, "shop", day_at(now.timestamp()))
        return make_token(key, msgspec.structs.replace(refused, **fields))

    return made


def raise_limit():
    return edits.set_tenant_quota(
        tenant="acme-retail",
        quota="requests",
        limit=900,
        window_s=60,
        expected_version=None,
        actor=BOB,
        **WHY,
    )


def explained(client, text, status=200, **more):
    answer = client.post("/explain", {"token": text, **more})
    assert answer.status_code == status
    return answer.content.decode()


def test_a_viewer_reads_then_and_now_and_who_changed_it(log_in, token):
    text, number = token(), raise_limit()
    shown = explained(log_in("vera"), text)
    assert "Refused by quota &quot;requests&quot; of tier pro: the quota was spent." in shown
    assert "changed since" in shown
    assert "900 calls per min" in shown
    assert f'href="/revisions/{number}"' in shown
    assert "raised for launch" in shown
    assert "bob" in shown
    assert "Asking again was possible after 12.4 s." in shown
    # The rule is at the tenant now, and that is where the button leads.
    assert 'href="/tenant?key=acme-retail&amp;quota=requests"' in shown


def test_a_spent_budget_says_what_is_left_and_leads_to_its_page(log_in, token):
    common = {"actor": BOB, "expected_version": None, **WHY}
    edits.set_account(account="main", pools=["payments-api"], hosts=[], **common)
    edits.set_budget(budget="main-month", account="main", amount=50_000_000, period="month", **common)
    text = token(rule="main/budget:main-month", dependency="payments-api", reason=Reason.BUDGET_SPENT)
    shown = explained(log_in("vera"), text)
    assert "Refused by budget &quot;main-month&quot;: the budget was spent." in shown
    assert "50.00 USD per month in UTC, then calls are refused" in shown
    assert "50.00 USD of 50.00 USD left until " in shown
    assert 'href="/budgets/of/main-month"' in shown


def test_an_unchanged_rule_leads_to_the_tier_that_has_it(log_in, token):
    shown = explained(log_in("ada"), token())
    assert "the same now" in shown
    assert 'href="/edit/tier?key=pro"' in shown
    assert "No edit has changed this rule since." in shown


def test_a_token_of_another_environment_is_explained_there(log_in, token):
    edits.create_environment(environment="staging", reason="for a test", actor=BOB)
    RefusalService.objects.create(environment="staging", service="shop", last_on=timezone.now().date())
    text = token("staging", revision=1)
    client = log_in("ada")
    led = client.post("/explain", {"token": text})
    assert (led.status_code, led["Location"]) == (307, "/env/staging/explain")
    shown = client.post(led["Location"], {"token": text}).content.decode()
    assert 'href="/env/staging/edit/tier?key=' in shown
    User.objects.filter(username="vera").update(environment_roles={"staging": ""})
    assert "not a token of this installation" in explained(log_in("vera"), text, 404)


@pytest.mark.parametrize("text", ["", "fr1.", "hello", "fr1." + "A" * 72])
def test_what_is_not_a_token_is_said_beside_the_form_that_keeps_it(log_in, token, text):
    shown = explained(log_in("vera"), text, 404)
    assert "not a token of this installation" in shown.split('id="f-token"')[1].split("</form>")[0]
    assert 'aria-describedby="f-token_error"' in shown


def test_an_expired_token_is_dated(log_in, production):
    at = timezone.now() - timezone.timedelta(days=40)
    RefusalService.objects.create(environment="production", service="shop", last_on=at.date())
    key = key_of("production", "shop", day_at(at.timestamp()))
    old = make_token(
        key,
        TokenContent(
            at_ms=int(at.timestamp() * 1000), number=1, revision=1, reason=None, mode=Mode.SHARED, rule=""
        ),
    )
    assert f"It is from {at.day} {at:%B %Y}" in explained(log_in("vera"), old, 410)


def test_more_than_twenty_tries_a_minute_are_refused(log_in, token):
    client = log_in("vera")
    for _ in range(MAX_TRIES):
        explained(client, "fr1.", 404)
    assert "20 tokens per minute" in explained(client, token(), 429)
    # Another person still may.
    explained(log_in("ada"), token())


def test_a_token_is_never_in_an_address(log_in, token):
    """Addresses are logged: the page ignores a token there."""
    answer = log_in("vera").get("/explain", {"token": token()})
    assert answer.status_code == 200
    assert "Then and now" not in answer.content.decode()


@pytest.mark.browser
def test_a_token_in_the_fragment_or_the_palette_is_explained_at_once(sign_in, token):
    page = sign_in("vera")
    text = token()
    page.goto(f"/explain#{text}")
    page.wait_for_selector("#explained")
    assert text not in page.url
    page.goto("/")
    page.keyboard.press("Control+k")
    page.fill("#palette input", text)
    page.wait_for_selector("#pal-list [role=option] >> text=Explain this refusal")
    page.keyboard.press("Enter")
    page.wait_for_selector("#explained")
    assert "acme-retail" in page.inner_text("#explained")
