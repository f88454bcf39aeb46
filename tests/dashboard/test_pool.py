"""The page of a dependency says who uses up its limits, and when its budgets end."""

import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from fleet_rows import put_server
from positions import Box, boxes_of_all
from rows_everywhere import put_suggestions
from shown import text_of
from test_browser_pages import looked_at, too_wide

from controlplane.alerts.rules.spending import SPENDING_RULES
from controlplane.editing import edits
from controlplane.fleet.stated_limits import PodSeen
from controlplane.ledger.models import UsageHour, Whose
from controlplane.ledger.rows import AMOUNTS
from controlplane.ledger.spenders import read_spenders
from controlplane.phrases import moment
from controlplane.policies.models import Dependency, VendorLimit
from controlplane.redis.scripts import limits as store_of_limits
from controlplane.same_fields import made_from
from controlplane.spending.budget_rows import Account
from controlplane.status.read_watched import forget
from controlplane.status.watched import Spent, VendorAnswers
from controlplane.suggestions.reading import learned_of
from controlplane.usage.budgets import Budget
from dashboard.live.pool import BudgetEnd, Pool, _budget, _too_many, verdict_of
from dashboard.views.page import current_live
from fuseboard.contract import keys
from tests.people import ADA

NOW = 1_790_000_000.0
LIMIT = VendorLimit(name="per-minute", measure="calls", algorithm="sliding_window", limit=900, window_s=60)
#: All queries of one reading, with those about the session, the person and the environment.
MOST_QUERIES = 12
CALM = "No limit keeps many calls back."
#: Each situation: what each pod of a fleet sees, what is spent of the limit, and the sentence.
SITUATIONS: list[tuple[dict[str, int], int, str]] = [
    ({}, 100, CALM),
    ({"refused": 9}, 100, CALM),  # 0.9 %
    ({"refused": 65}, 100, "The vendor: it refuses 6.5 % of the calls."),
    ({"blocked": 30}, 100, "We: limits here refuse calls."),
    ({"blocked": 30}, 720, "We: limits here refuse calls, now per-minute."),
    ({"blocked": 30, "refused": 65}, 720, "The vendor: it refuses 6.5 % of the calls."),
    ({"others": 4_500, "blocked": 30, "refused": 65}, 720, "Another consumer: others with the same key use "),
]
#: A lie is what one pod claims, whatever happens.
LIES: list[dict[str, Any]] = [
    {"sent": 10**6, "refused": 10**6},
    {"sent": 10**9},
    {"refused": 10**6},
    {"blocked": 10**6, "followed": 1},
    {"others": 10**9, "said": 1, "left": 0},
    {"sent": 10**6, "refused": 10**6, "blocked": 10**6, "others": 10**9, "said": 1, "answers": 10**6},
    {"sent": 0},
]


def said(pods: list[PodSeen], *, spent: int = 100, limits: Any = (LIMIT,), pool: Pool | None = None) -> str:
    learned = learned_of(
        "openai", limits, {one.name: pods for one in limits}, spent={one.name: spent for one in limits}
    )
    return verdict_of(learned, pool or Pool())


def fleet(number: int, **seen: int) -> list[PodSeen]:
    return [PodSeen(f"web-{place}", **{"sent": 1_000} | seen) for place in range(number)]


@pytest.mark.parametrize("number", [2, 3, 20])
@pytest.mark.parametrize(("seen", "spent", "sentence"), SITUATIONS)
def test_one_sentence_says_whether_we_the_vendor_or_others_keep_calls_back(
    number: int, seen: dict[str, int], spent: int, sentence: str
) -> None:
    assert said(fleet(number, **seen), spent=spent).startswith(sentence)


@pytest.mark.parametrize("number", [3, 20])
@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize(("seen", "spent", "sentence"), SITUATIONS)
def test_one_pod_that_lies_changes_nothing(
    number: int, lie: dict[str, Any], seen: dict[str, int], spent: int, sentence: str
) -> None:
    """Neither who keeps calls back, nor that nobody does. It can hide its own part of the calls only."""
    honest = fleet(number - 1, **seen)
    told = said([*honest, PodSeen("liar", **lie)], spent=spent)
    assert sentence.startswith(told.split(":")[0])
    assert told.split(":")[0] == said(honest, spent=spent).split(":")[0]


@pytest.mark.parametrize("few", [{"blocked": 9}, {"refused": 9, "sent": 100}, {"others": 9}])
def test_a_few_calls_of_two_pods_are_no_evidence(few: dict[str, int]) -> None:
    assert said(fleet(2, **few)) == CALM


def test_a_share_is_not_what_one_pod_claims() -> None:
    liar = PodSeen("liar", sent=10**6, refused=10**6, others=10**9)
    # It counts as twice the calls of the others, and as many refusals as the worst of them.
    assert said([*fleet(2, refused=65), liar]) == "The vendor: it refuses 4.9 % of the calls."
    words = "Another consumer: others with the same key use 10 % of the limit per-minute."
    assert said([*fleet(2, others=300), liar]) == words


def test_one_pod_that_is_alone_is_named_as_such() -> None:
    assert said(fleet(1, refused=65)) == (
        "The vendor: it refuses 6.5 % of the calls. Only one pod makes calls, and no other one confirms it."
    )
    assert said(fleet(1)) == CALM
    # Another pod makes calls, too, and nothing is refused.
    assert said([*fleet(1, refused=65), PodSeen("web-1", sent=1)]) == CALM


def spent_budgets(*names: str) -> list[BudgetEnd]:
    return [
        BudgetEnd(name=name, spent="$1", limit="$1", share="100 %", ends="", is_spent=True) for name in names
    ]


def test_a_stop_or_a_spent_budget_comes_before_what_limits_say() -> None:
    busy = fleet(3, refused=65, blocked=30, others=900)
    spent = Pool(budgets=spent_budgets("day", "month"))
    assert said(busy, pool=spent) == "We: nothing is left of day, month."
    paused = replace(spent, stops=("It asked for a pause.",))
    assert said(busy, pool=paused) == "The vendor: It asked for a pause."
    assert said(busy, pool=Pool(is_unread=True)).startswith("Another consumer")
    unknown = "Unknown: Redis does not answer, and has the stops."
    assert said(fleet(3), pool=Pool(is_unread=True)) == unknown
    assert said([], limits=(), pool=spent) == "We: nothing is left of day, month."
    assert said([], limits=()).startswith("Not us: no limit of the vendor is configured here.")


def test_without_a_limit_the_answers_that_pods_report_are_named() -> None:
    assert _too_many(None) == _too_many(VendorAnswers(minutes=7, calls=900, refused_account=9)) == ""
    words = "Pods report 429 for 3 % of 1,000 calls in 7 min."
    assert _too_many(VendorAnswers(minutes=7, calls=1_000, too_many=30)) == words


def test_the_limit_that_others_use_most_is_named() -> None:
    tokens = VendorLimit(name="tokens", measure="tokens", algorithm="token_bucket", limit=100, window_s=60)
    words = "Another consumer: others with the same key use 60 % of the limit tokens."
    assert said(fleet(3, others=200), limits=(LIMIT, tokens)) == words


def budget(spent: int, *, at: float = 0.25, shadow: bool = False) -> Budget:
    """Of a day, of which this part has passed; continued from the mean of that part."""
    return Budget(
        tenant="",
        dependency="openai",
        name="openai/budget:day",
        title="day",
        source="budget",
        tier="",
        measure="micro_usd",
        limit=10_000_000,
        period="day",
        time_zone="UTC",
        shadow=shadow,
        began=NOW - at * 86_400,
        ends=NOW + (1 - at) * 86_400,
        since=NOW - at * 86_400,
        spent=spent,
        projected=round(spent / at),
    )


@pytest.mark.parametrize("spent", [1, 2_000_000, 2_500_000, 5_100_000, 6_000_000, 9_999_999])
def test_a_budget_ends_when_the_alert_says(spent: int) -> None:
    one = made_from(Spent, budget(spent))
    ends = _budget(one, NOW).ends
    (burn,) = (rule for rule in SPENDING_RULES if rule.key == "burn")
    assert burn.value is not None
    part = burn.value(one)
    if one.gone_at is None:
        assert part == 1.0
        assert ends == f"its period ends at {moment(one.ends)}"
    else:
        at = one.ends - 86_400 * (1 - part)
        assert ends == f"spent at {moment(at)} if spending goes on like this"
        assert NOW <= at <= one.ends


def test_a_spent_budget_says_for_how_long() -> None:
    assert _budget(made_from(Spent, budget(10_000_000)), NOW).ends == "spent, for 18 h more"
    shadow = _budget(made_from(Spent, budget(10_000_000, shadow=True)), NOW)
    assert (shadow.ends, shadow.is_spent) == ("and it refuses nothing", False)


def put_hour(at: datetime, tenant: str, micro_usd: int) -> None:
    amounts = dict.fromkeys(AMOUNTS, 0) | {"calls": 3, "micro_usd": micro_usd}
    about = {"environment": "production", "model": "gpt-5.2", "dependency": "payments-api"}
    UsageHour.objects.create(at=at, whose=Whose.TENANT, name=tenant, **about, **amounts)


@pytest.mark.django_db(transaction=True)
def test_the_tenants_that_spend_most_are_those_of_this_hour() -> None:
    hour = datetime(2026, 5, 4, 13, tzinfo=UTC)
    put_hour(hour, "acme-retail", 6_000_000)
    put_hour(hour, "globex", 9_000_000)
    put_hour(hour.replace(hour=12), "acme-retail", 60_000_000)
    found = read_spenders("production", "payments-api", hour.replace(minute=30))
    assert [(one.tenant, one.micro_usd_per_min) for one in found.listed] == [
        ("globex", 300_000),
        ("acme-retail", 200_000),
    ]
    early = read_spenders("production", "payments-api", hour.replace(minute=5))
    assert [one.tenant for one in early.listed] == ["acme-retail", "globex"]
    assert early.since == hour.replace(hour=12)
    assert read_spenders("production", "other", hour.replace(minute=30)).listed == ()


def in_three_hours() -> float:
    """A moment in microseconds. The page may take 55 s until it says that 3 h are left."""
    return (time.time() + 3 * 3_600 + 55) * 1_000_000


def this_hour() -> datetime:
    return datetime.now(UTC).replace(minute=0, second=0, microsecond=0)


@pytest.mark.django_db(transaction=True)
def test_the_page_has_stops_with_their_cause_and_who_spends(log_in: Any, limits: Any) -> None:
    put_suggestions()
    seen = ["payments-api", "contract", 600, 700, 500, 1_700_000_000, 40, 200, 9, 3, 1_200]
    put_server("liar", seen=[[*seen[:7], 10**6, 10**6, 10**6, 10**9]])
    put_hour(this_hour(), "acme-retail", 6_000_000)
    until = in_three_hours()
    store_of_limits().set(keys.cooldown("production", "payments-api"), f"{until:.0f}")
    text = text_of(log_in("ada").get("/breakers/payments-api").content.decode())
    assert "The vendor: It asked for a pause of 3 h more." in text
    assert "Tenants that spend most" in text
    assert "Stop tenant" in text
    store_of_limits().delete(keys.cooldown("production", "payments-api"))
    text = text_of(log_in("vera").get("/breakers/payments-api/limits").content.decode())
    # The sentence is the one that the page would have if the lying pod were like the others.
    assert "Another consumer: others with the same key use 40 % of the limit contract." in text
    assert "Tenants that spend most" in text
    assert "Stop tenant" not in text


@pytest.mark.django_db(transaction=True)
def test_a_stopped_account_is_named(log_in: Any, limits: Any) -> None:
    Account.objects.create(environment_id="production", name="main", pools=["payments-api"])
    until = round(in_three_hours())
    store_of_limits().hset(keys.account_stop("production", "main"), "until", until)
    text = text_of(log_in("vera").get("/breakers/payments-api/limits").content.decode())
    assert "The vendor: Account main is stopped for 3 h more" in text


@pytest.mark.django_db(transaction=True)
def test_each_reading_asks_the_ledger_once_however_much_there_is(
    log_in: Any, limits: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page reads this again every 10 s, for each person who looks at it; the fleet as the hub drew it."""
    put_suggestions()
    drawn = current_live("production")
    monkeypatch.setattr("dashboard.views.breakers.vendor_limits.recent_live", lambda _: drawn)
    client, address = log_in("vera"), "/breakers/payments-api/limits"

    def asked() -> list[str]:
        client.get(address)  # the first one after an edit may read more
        with CaptureQueriesContext(connection) as captured:
            assert client.get(address).status_code == 200
        return [query["sql"] for query in captured.captured_queries]

    few = asked()
    assert sum("ledger_usagehour" in sql for sql in few) == 1
    assert len(few) <= MOST_QUERIES, "\n".join(few)
    Account.objects.create(environment_id="production", name="main", pools=["payments-api", "search"])
    for number in range(40):
        put_hour(this_hour(), f"tenant-{number}", 1_000_000)
        put_server(f"pod-{number}", seen=[["payments-api", "contract", 600, 0, 5, 1.0, 40, 200, 9, 3, 1]])
    many = asked()
    assert sum("ledger_usagehour" in sql for sql in many) == 1
    assert len(many) == len(few), "\n".join(many)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("kind", ["llm", "external"])
def test_a_vendor_without_a_limit_has_the_sentence_too(log_in: Any, limits: Any, kind: str) -> None:
    Dependency.objects.filter(name="payments-api").update(kind=kind)
    put_hour(this_hour(), "acme-retail", 6_000_000)
    html = log_in("ada").get("/breakers/payments-api/limits").content.decode()
    text = text_of(html)
    assert " hidden" not in html.partition(">")[0]
    assert "Not us: no limit of the vendor is configured here." in text
    assert "acme-retail: " in text
    assert "Add limit" in text
    assert "Configured" not in text


@pytest.fixture
def a_busy_pool(production: Any, limits: Any) -> None:
    """With suggestions, a budget, and tenants that spend; one of them has a long name."""
    put_suggestions()
    edits.set_budget(
        environment="production",
        budget="payments-day",
        dependency="payments-api",
        amount=5_000_000,
        period="day",
        expected_version=None,
        reason="for a test",
        actor=ADA,
    )
    for number, tenant in enumerate(("acme-retail", "globex", f"a-tenant-with-{'a-very-' * 8}long-name", "")):
        put_hour(this_hour(), tenant, (9 - number) * 1_000_000)
    forget()


def boxes_of_buttons(page: Any) -> list[Box]:
    (found,) = boxes_of_all(page, "#vendor :is(.offer, #spenders) .btn")
    return found


def gap(one: Box, other: Box) -> float:
    """Pixels between two buttons, beside or below each other."""
    beside = max(one["x"], other["x"]) - min(one["x"] + one["width"], other["x"] + other["width"])
    below = max(one["y"], other["y"]) - min(one["y"] + one["height"], other["y"] + other["height"])
    return max(beside, below)


@pytest.mark.browser
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("width", [1440, 390])
def test_its_buttons_are_apart_and_nothing_is_wider_than_the_window(
    page: Any, sign_in: Any, a_busy_pool: None, width: int
) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    sign_in("ada")
    page.goto("/breakers/payments-api")
    page.wait_for_selector("#spenders .btn")
    buttons = boxes_of_buttons(page)
    assert len(buttons) == 6
    gaps = [gap(one, other) for place, one in enumerate(buttons) for other in buttons[:place]]
    assert min(gaps) >= 4, gaps
    if width == 390:
        assert looked_at(page, "pool") + too_wide(page, "pool") == []
