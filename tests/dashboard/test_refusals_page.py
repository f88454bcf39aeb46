"""The page of refusals: counts and estimates apart, filters in the address, two clicks to an explanation."""

import re
from datetime import timedelta
from urllib.parse import parse_qs, urlsplit

import pytest
from django.utils import timezone
from fleet_rows import breaker, put_figures, put_server
from refused_samples import put_samples, sample_of

from controlplane.refusals.models import TopList
from controlplane.refusals.samples import token_of
from controlplane.refusals.top_lists import (
    CALLS_BY_DEPENDENCY,
    CALLS_BY_REASON,
    CALLS_BY_TENANT,
    REQUESTS_BY_ENDPOINT,
    REQUESTS_BY_REASON,
    REQUESTS_BY_TENANT,
)
from controlplane.series import sealing
from controlplane.series.kinds import FLEET, POD
from controlplane.usage.models import RuleDemand
from dashboard.views.refusals.refusal_log import measured_words
from dashboard.views.refusals.refusal_tables import FILTERS, share_words
from tests.controlplane.series.test_series_sealing import measure, row, thing, writer

pytestmark = pytest.mark.django_db(transaction=True)

#: Pages with figures of refusals -> the filters that their figures lead to.
FIGURES = {
    "/": [{}, {"dependency": "payments-api"}, {"tenant": "acme-retail"}],
    "/tenants": [{"tenant": "acme-retail"}],
    "/tenant?key=acme-retail": [
        {"tenant": "acme-retail"},
        {"tenant": "acme-retail", "rule": "requests", "range": "24h"},
    ],
    "/tenant?key=guest": [{"tenant": "guest"}, {"tenant": "guest", "rule": "requests", "range": "24h"}],
    "/breakers": [{"dependency": "payments-api"}],
    "/breakers/payments-api": [
        {"dependency": "payments-api"},
        {"dependency": "payments-api", "reason": "bulkhead_full"},
        {"dependency": "payments-api", "reason": "queue_timeout"},
    ],
    "/bulkheads": [
        {"dependency": "payments-api", "reason": "bulkhead_full"},
        {"dependency": "payments-api", "reason": "queue_timeout"},
    ],
    "/limits": [{"tenant": "acme-retail", "rule": "requests"}],
    "/servers/web-1": [{"pod": "web-1"}],
    "/tiers": [{"tier": "anonymous"}, {"tier": "pro"}],
}


@pytest.fixture
def samples(production):
    return put_samples()


@pytest.fixture
def figures(production):
    """Something is refused everywhere."""
    opened = breaker("payments-api", "open")
    put_server(breakers=[opened], load={"slots": 2, "calls_refused_per_s": 3.0})
    put_figures(
        tenants=[
            {"tenant": name, "requests_per_s": 60.0, "refused_per_s": 1.0}
            for name in ("acme-retail", "guest")
        ],
        dependencies={
            "payments-api": {
                "calls_per_s": 0.0,
                "failures_per_s": 0.0,
                "slow_per_s": 0.0,
                "refused_per_s": 4.0,
            }
        },
        rules=[
            {
                "tenant": "acme-retail",
                "rule": "requests",
                "asked_per_s": 15.0,
                "refused_per_s": 5.0,
                "shadow_per_s": 0.0,
            }
        ],
        protection={
            "payments-api": {
                "callers": 3,
                "tiers": {"standard": {"limit": 17, "active": 17, "full_per_s": 2.5, "timed_out_per_s": 1.0}},
            }
        },
    )
    hour = (timezone.now() - timedelta(hours=3)).replace(minute=0, second=0, microsecond=0)
    for tenant in ("acme-retail", "guest"):
        RuleDemand.objects.create(
            environment="production",
            tenant=tenant,
            rule="requests",
            grain_s=3600,
            at=hour,
            asked=9,
            refused=3,
            shadow=0,
        )


def page(client, address):
    answer = client.get(address)
    assert answer.status_code == 200
    return " ".join(answer.content.decode().split())


def test_an_estimate_is_a_share_and_never_a_count(log_in, samples):
    shown = page(log_in("vera"), "/refusals")
    assert "Nothing is counted of this time. Below are shares of samples." in shown
    assert "No samples of this time, " in shown  # of calls
    assert "shares are estimates from 2 samples" in shown
    assert "90 %" in shown
    assert ">100<" not in shown  # the sum of the weights


def put_lists(**short_by: float) -> None:
    """What gateways wrote a moment ago: 27 requests and 12 calls were refused."""
    minute = timezone.now().replace(second=0, microsecond=0)
    lists = {
        REQUESTS_BY_TENANT: {"acme-retail": 18, "globex": 6},
        REQUESTS_BY_REASON: {"quota": 21, "suspended": 6},
        REQUESTS_BY_ENDPOINT: {"POST /v1/orders": 15, "": 5},
        CALLS_BY_DEPENDENCY: {"payments-api": 12},
        CALLS_BY_REASON: {"breaker_open": 12},
        CALLS_BY_TENANT: {"acme-retail": 3, "": 1},
    }
    for kind, counts in lists.items():
        total = {REQUESTS_BY_TENANT: 27, REQUESTS_BY_REASON: 27}.get(kind, sum(counts.values()))
        TopList.objects.create(
            environment="production",
            kind=kind.number,
            grain_s=60,
            at=minute,
            writer=1,
            names=list(counts),
            counts=list(counts.values()),
            total=total,
            short_by=short_by.get(kind.by.value, 0.0),
        )


def rows_of(shown, group):
    """The cells of a list, row by row."""
    part = shown.split(f'id="h-g-{group}"')[1].split("</table>")[0].split("<tbody>")[1]
    return [
        [re.sub(r"<[^>]*>", "", cell).strip() for cell in re.findall(r"<td.*?</td>", row)]
        for row in part.split("</tr>")[:-1]
    ]


def test_requests_and_calls_are_apart_and_agree_with_the_headline(log_in, samples):
    put_lists()
    shown = page(log_in("vera"), "/refusals?range=15m")
    assert "<h1>27 requests were refused</h1>" in shown
    assert (
        "Most refused: acme-retail, 18 of 27 requests (67 %). The quota was spent (limit requests)." in shown
    )
    assert "12 calls to dependencies were not made, all of them to payments-api." in shown
    assert rows_of(shown, "requests-tenant") == [
        ["acme-retail", "18", "67 %"],
        ["globex", "6", "22 %"],
        ["not counted per tenant", "3", "11 %"],
    ]
    assert rows_of(shown, "requests-reason") == [
        ["The quota was spent", "21", "78 %"],
        ["The tenant was suspended", "6", "22 %"],
    ]
    # Samples estimate shares of the same 27 requests.
    assert rows_of(shown, "requests-endpoint") == [
        ["POST /v1/orders", "about 20", "75 %"],
        ["not reported by the service", "about 7", "25 %"],
    ]
    assert rows_of(shown, "calls-dependency") == [["payments-api", "12", "100 %"]]
    assert rows_of(shown, "calls-reason") == [["The circuit breaker was open", "12", "100 %"]]
    assert rows_of(shown, "calls-tenant") == [
        ["acme-retail", "about 9", "75 %"],
        ["no tenant", "about 3", "25 %"],
    ]
    assert 'href="/refusals?range=15m&amp;reason=quota"' in shown
    # The filter of a name continues with samples, of requests and calls apart.
    shown = page(log_in("vera"), "/refusals?range=15m&tenant=acme-retail")
    assert rows_of(shown, "requests-reason") == [["The quota was spent", "100 %"]]


def sums_of(shown):
    """The sum of the figures of each list, and whether its rows are in the order of their figures."""
    found = {}
    for group in re.findall(r'id="h-g-([a-z-]+)"', shown):
        figures = [int(re.sub(r"[^0-9]", "", row[1])) for row in rows_of(shown, group) if len(row) == 3]
        found[group] = (sum(figures), figures == sorted(figures, reverse=True))
    return found


def test_all_lists_of_a_section_have_one_sum_and_the_order_of_their_figures(log_in, production):
    """Counters of pods and of limits begin and end at other moments than the lists."""
    pods = {"web-1": (60.0, 9), "web-2": (40.0, 300)}
    now = timezone.now()
    hour = now.replace(minute=0, second=0, microsecond=0)
    by_pod = {thing(POD, name=pod, first_at=hour): row(POD, 500, refused=n) for pod, (_, n) in pods.items()}
    measure(writer(), 0, POD, by_pod, hour=hour)
    for pod, (weight, _) in pods.items():
        sample_of(server=pod, rule=f"of-{pod}", weight=weight)
        sample_of(server=pod, rule="", dependency="payments-api", reason="breaker_open", weight=weight)
    put_lists()
    shown = page(log_in("vera"), "/refusals?range=6h")
    assert rows_of(shown, "requests-pod") == [["web-1", "about 16", "60 %"], ["web-2", "about 11", "40 %"]]
    assert {"requests-rule", "requests-tenant", "calls-pod"} <= sums_of(shown).keys()
    for group, (total, in_order) in sums_of(shown).items():
        assert (total, in_order) == (27 if group.startswith("requests") else 12, True), group
    # Every section names its window.
    assert f"27 answered 429 or 503, {TopList.objects.earliest('at').at:%H:%M} to " in shown


def test_a_list_of_limits_does_not_repeat_the_dependencies(log_in, production):
    """ "By limit" listed dependencies, with estimates that contradicted the counts of "By dependency"."""
    put_lists()
    sample_of(rule="payments-api", dependency="payments-api", reason="breaker_open", weight=3.0)
    shown = page(log_in("vera"), "/refusals?range=6h")
    assert "calls-pod" in sums_of(shown)
    assert "calls-rule" not in sums_of(shown)
    sample_of(rule="tokens", dependency="payments-api", reason="vendor_limit", weight=1.0)
    shown = page(log_in("vera"), "/refusals?range=6h")
    assert "By limit or breaker" in shown
    assert [row[0] for row in rows_of(shown, "calls-rule")] == ["payments-api", "tokens"]


def test_samples_of_a_day_do_not_estimate_the_refusals_of_a_month(log_in, samples):
    put_lists()
    TopList.objects.create(
        environment="production", kind=REQUESTS_BY_REASON.number, grain_s=3600, writer=0,
        at=timezone.now() - timedelta(days=29), names=["quota"], counts=[39.0], total=39.0, short_by=0.0,
    )  # fmt: skip
    shown = page(log_in("vera"), "/refusals?range=28d")
    assert "shares of the last 24 hours are estimates from 3 samples" in shown
    assert all(len(row) == 2 for row in rows_of(shown, "requests-pod"))
    assert all(len(row) == 3 for row in rows_of(shown, "requests-tenant"))


def test_a_number_that_can_be_too_low_is_at_least_that(log_in, production):
    put_lists(tenant=2.0)
    shown = page(log_in("vera"), "/refusals?range=15m")
    assert rows_of(shown, "requests-tenant")[0] == ["acme-retail", "at least 18", "67 %"]
    assert rows_of(shown, "requests-reason")[0][1] == "21"


def test_long_ranges_say_since_when_lists_are_stored(log_in, samples):
    put_lists()
    shown = page(log_in("vera"), "/refusals?range=28d")
    assert re.search(r"The lists below begin later, at [^.]* UTC: they have 27 refused requests\.", shown)
    assert "<h1>27 requests were refused</h1>" in shown
    # Limits, pods and the reason are from samples also without a filter.
    assert "Samples are kept for 24 hours." in shown
    assert "Samples are kept" not in page(log_in("vera"), "/refusals?range=24h")
    shown = page(log_in("vera"), "/refusals?range=7d&tenant=acme-retail")
    assert "Samples are kept for 24 hours." in shown


def test_lists_of_a_part_of_the_range_are_not_divided_by_all_its_requests(log_in, production):
    """They are stored since an upgrade; the requests of four weeks are counted."""
    put_lists()
    hour = (timezone.now() - timedelta(days=2)).replace(minute=0, second=0, microsecond=0)
    fleet = thing(FLEET, first_at=hour)
    measure(writer(), 0, FLEET, {fleet: row(FLEET, 1_000, refused=40)}, hour=hour)
    sealing.seal(hour + timedelta(hours=1, minutes=30))
    address = "/refusals?range=28d"
    shown = page(log_in("vera"), address)
    assert "<h1>40 of 1,000 requests were refused (4.0 %)</h1>" in shown
    # The headline and the lists have two ranges: each is named, and each share says of what.
    words = re.search(r"<h1>.*?</h1> <p>(.*?)</p>", shown)[1]
    first = TopList.objects.earliest("at").at
    assert re.match(r"\d+ \w+ \d\d:00 to \d+ \w+ \d\d:\d\d UTC\. ", words), words
    assert (
        f"The lists below begin later, at {first:%-d %b %H:%M} UTC: they have 27 refused requests." in words
    )
    assert "Most refused: acme-retail, 18 of 27 requests (67 %)." in words
    TopList.objects.filter(kind=REQUESTS_BY_REASON.number).update(at=timezone.now() - timedelta(days=29))
    TopList.objects.create(
        environment="production", kind=REQUESTS_BY_REASON.number, grain_s=3600, at=hour, writer=0,
        names=["quota"], counts=[39.0], total=39.0, short_by=0.0,
    )  # fmt: skip
    assert "<h1>39 of 1,000 requests were refused (3.9 %)</h1>" in page(log_in("vera"), address)


def test_calls_to_several_dependencies_have_a_number_and_not_most(log_in, production):
    put_lists()
    calls = {"names": ["a", "b", "c"], "counts": [34.0, 33.0, 33.0], "total": 100.0}
    TopList.objects.filter(kind=CALLS_BY_DEPENDENCY.number).update(**calls)
    shown = page(log_in("vera"), "/refusals?range=15m")
    assert "100 calls to dependencies were not made, 34 of them to a." in shown


def test_the_headline_names_the_range_of_the_lists(log_in, production):
    """A range of 6 hours begins at a whole hour."""
    put_lists()
    TopList.objects.create(
        environment="production", kind=REQUESTS_BY_REASON.number, grain_s=3600, writer=0,
        at=timezone.now() - timedelta(days=9), names=["quota"], counts=[39.0], total=39.0, short_by=0.0,
    )  # fmt: skip
    shown = page(log_in("vera"), "/refusals?range=6h")
    ranges = re.findall(r"((?:\d+ \w+ )?\d\d:\d\d to (?:\d+ \w+ )?\d\d:\d\d UTC)", shown)
    assert len(ranges) == 3
    assert len(set(ranges)) == 1


@pytest.mark.parametrize(
    ("percent", "words"),
    [
        (0.04, "under 0.1 %"),
        (9.94, "9.9 %"),
        (67.2, "67 %"),
        (99.93, "99.9 %"),
        (99.97, "99.9 %"),
        (100, "100 %"),
    ],
)
def test_a_share_of_less_than_all_is_never_100_percent(percent, words):
    assert share_words(percent) == words


@pytest.mark.parametrize(
    ("known_s", "length_s", "words"), [(3480, 3600, "58 of 60 minutes"), (72_000, 86_400, "20 of 24 hours")]
)
def test_the_measured_part_is_in_the_unit_of_the_range(known_s, length_s, words):
    assert measured_words(known_s, length_s) == words


@pytest.mark.browser
def test_a_token_is_explained_from_the_page_of_refusals(sign_in, samples):
    """Two clicks and the token, as from the side bar before."""
    put_lists()
    page = sign_in("vera")
    page.goto("/refusals")
    page.fill("input[name=token]", token_of(samples[0]))
    page.click("form[action$=explain] button")
    page.wait_for_selector("#explained")
    assert "fr1." not in page.url


def test_filters_and_the_range_are_in_the_address(log_in, samples):
    client = log_in("vera")
    shown = page(client, "/refusals?endpoint=GET+%2Fv1%2Fitems")
    assert "estimates from 1 sample<" in shown
    shown = page(client, "/refusals?range=24h")
    assert "estimates from 3 samples" in shown
    assert "tenant=acme-retail" in shown
    # An unknown range is the usual one. NUL is refused on every page, before a filter reads it.
    assert "estimates from 2 samples" in page(client, "/refusals?range=never")
    assert client.get("/refusals?pod=%00none").status_code == 400


def test_a_sample_leads_to_its_explanation(log_in, samples):
    client = log_in("vera")
    assert f'href="/explain/{samples[0].pk}"' in page(client, "/refusals")
    shown = page(client, f"/explain/{samples[0].pk}")
    assert "the quota was spent" in shown
    assert "Tenant acme-retail" in shown
    assert client.get("/explain/999999999").status_code == 404


def test_a_tier_is_a_filter_and_callers_that_are_not_registered_are_of_the_default_one(log_in, samples):
    client = log_in("vera")
    assert "estimates from 2 samples" in page(client, "/refusals?range=24h&tier=pro")
    assert "estimates from 1 sample<" in page(client, "/refusals?range=24h&tier=anonymous")
    assert "No samples of this time" in page(client, "/refusals?range=24h&tier=enterprise")


@pytest.mark.parametrize("address", FIGURES)
def test_every_figure_of_refusals_leads_to_them(log_in, figures, address):
    shown = log_in("vera").get(address).content.decode().replace("&amp;", "&")
    found = [
        {name: values[0] for name, values in parse_qs(urlsplit(link).query).items()}
        for link in re.findall(r'href="(/refusals[^"]*)"', shown)
    ]
    assert [link for link in FIGURES[address] if link not in found] == []
    assert {name for link in found for name in link} <= {*FILTERS, "range"}


def test_the_file_has_the_filter_and_no_formula(log_in, samples):
    answer = log_in("vera").get("/refusals?range=24h&tenant=%3Dcmd()&format=csv")
    lines = answer.content.decode().splitlines()
    assert len(lines) == 2
    assert "'=cmd()" in lines[1]
    assert answer["Content-Type"].startswith("text/csv")
