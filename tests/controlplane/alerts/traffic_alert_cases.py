"""Cases of the rules about tenants, vendors, budgets, backlogs and expiry, as in ``test_alert_rules``."""

from dataclasses import replace
from datetime import UTC, date, datetime
from typing import Any

from controlplane.fleet.call_figures import CallFigures, SlotFigures
from controlplane.fleet.live import DependencyFigures, FleetFigures, RuleFigures, TenantFigures
from controlplane.ledger.invoices import Drift
from controlplane.ledger.reading import SpendJump, Unpriced
from controlplane.refusals.callers import RefusedCaller
from controlplane.refusals.dependencies import RefusedBy
from controlplane.status.facts import Dependency, Facts, Server, Transition
from controlplane.status.watched import Expiry, FollowedLimit, OddPod, Spent, VendorAnswers, Watched
from tests.controlplane.alerts.alert_facts import NOW, OPEN, facts, figures, pod
from tests.controlplane.alerts.backlog_alert_cases import BACKLOG_CASES

DAY_S = 86_400.0
VENDOR = "More than 1 % is a warning, more than 10 % is critical."


def was_open(minutes: float) -> Facts:
    """For this part of the last hour; it closed a minute ago."""
    moved = [(NOW - 60, "open", "closed"), (NOW - 60 - minutes * 60, "closed", "open")]
    return facts(
        transitions=tuple(
            Transition(dependency="payments-api", at=at, before=before, after=after, cause="ratio")
            for at, before, after in moved
        )
    )


def answered(**answers: int) -> Facts:
    return facts(watched=Watched(vendors={"payments-api": VendorAnswers(minutes=7, calls=1000, **answers)}))


def refused(times: float, samples: int) -> Facts:
    one = RefusedCaller(
        column="ip",
        kind="address",
        digest="00ff" * 4,
        tenant="acme",
        rule="logins",
        refused=times,
        samples=samples,
        last=datetime.fromtimestamp(NOW, UTC),
    )
    return facts(watched=Watched(callers=(one,)))


def calls(calls_per_s: float, refused_per_s: float, *pods: Server, **more: Any) -> Facts:
    """What becomes of the calls to one dependency."""
    rates = DependencyFigures(calls_per_s=calls_per_s, refused_per_s=refused_per_s)
    return facts(*pods, figures=FleetFigures(gateways=1, dependencies={"payments-api": rates}), **more)


def paused(some: Facts) -> Facts:
    """A person set a limit of 0."""
    return replace(some, dependencies=(replace(some.dependencies[0], paused=True),))


WITHOUT_REDIS = {"payments-api": RefusedBy(limit="per-day", reason="store_unavailable")}
REFUSED = "Its breaker is not the cause."


def spent(number: int, *, shadow: bool = False, ends: float = NOW + 60, **more: Any) -> Facts:
    about = {"tenant": "acme", "name": "cost", "limit": 1000, "measure": "cents", **more}
    one = Spent(dependency="", spent=number, shadow=shadow, ends=ends, **about)
    return facts(watched=Watched(spent=(one,)))


def of_budget(number: int, **more: Any) -> Facts:
    """Micro-USD spent of 1 USD."""
    money: dict[str, Any] = {"measure": "micro_usd", "limit": 1_000_000}
    return spent(number, tenant="", name="main/budget:month", title="month", account="main", **money, **more)


def drifted(ledger_usd: int) -> Facts:
    """The ledger beside an invoice of 100 USD."""
    one = Drift(
        account="main",
        month=date(2026, 10, 1),
        invoiced=100_000_000,
        ledger=ledger_usd * 1_000_000,
        counted_from=date(2026, 3, 2),
    )
    return facts(watched=Watched(drifts=(one,)))


def jumped(usd: int) -> Facts:
    """An hour that usually costs 10 USD."""
    one = SpendJump(at=NOW, micro_usd=usd * 1_000_000, usual_micro_usd=10_000_000, model="gpt-5.2")
    return facts(watched=Watched(spend_jump=one))


def unpriced(model: str, calls: int) -> Facts:
    return facts(watched=Watched(unpriced=(Unpriced(model=model, dependency="openai", calls=calls),)))


def follows(number: int) -> Facts:
    one = FollowedLimit(dependency="payments-api", limit="per-minute", number=number, configured=900)
    return facts(watched=Watched(followed=(one,)))


def refuses_one_pod(refused: int) -> Facts:
    """Of the other pods, it refuses 10 %."""
    others = {"others": 5, "others_refused": 100, "others_sent": 1_000}
    one = OddPod(dependency="payments-api", pod="web-3", refused=refused, sent=200, **others)
    return facts(watched=Watched(odd_pods=(one,)))


def expires(kind: str, days: float) -> Facts:
    one = Expiry(kind=kind, name="shop", at=NOW + days * DAY_S)  # type: ignore[arg-type]
    return facts(watched=Watched(expiring=(one,)))


def sends(requests_per_s: float, usual_per_s: float) -> Facts:
    some = figures(tenants=[TenantFigures("acme", requests_per_s, 0)])
    return facts(figures=some.figures, watched=Watched(usual_per_s={"acme": usual_per_s}))


def waiting(queued: int) -> Facts:
    calls = CallFigures(tiers=(SlotFigures("standard", 17, 17, queued),), callers=2)
    some = figures(protection={"payments-api": calls})
    dependency = Dependency(name="payments-api", protection={"bulkhead": {"queues": [2, 3, 5]}})
    return facts(figures=some.figures, dependencies=(dependency,))


TRAFFIC_CASES: list[tuple[tuple[str, str], Facts, str, Facts]] = [
    (
        ("all-refused", "critical"),
        calls(0, 12, refused_by=WITHOUT_REDIS),
        "No call to payments-api is allowed (limit per-day, without Redis). Pods refuse 12 calls/s, 100 % of"
        f" all. {REFUSED}",
        # One of 100 calls is allowed.
        calls(0.13, 11.87, refused_by=WITHOUT_REDIS),
    ),
    (
        ("all-refused", "critical"),
        calls(0.1, 19.9),
        f"99.5 % of calls to payments-api are refused. Pods refuse 19.9 calls/s, 99.5 % of all. {REFUSED}",
        calls(0.2, 19.8),
    ),
    (
        ("all-refused", "critical"),
        calls(0, 0.5),
        f"No call to payments-api is allowed. Pods refuse 0.5 calls/s, 100 % of all. {REFUSED}",
        # The breaker refuses them, and the headline names it.
        calls(0, 0.5, pod(view=OPEN)),
    ),
    (
        ("all-refused", "critical"),
        calls(0, 0.1),
        f"No call to payments-api is allowed. Pods refuse 0.1 calls/s, 100 % of all. {REFUSED}",
        # One refusal in a minute says nothing.
        calls(0, 0.02),
    ),
    (
        ("all-refused", "critical"),
        calls(0, 2),
        f"No call to payments-api is allowed. Pods refuse 2 calls/s, 100 % of all. {REFUSED}",
        paused(calls(0, 2)),
    ),
    *BACKLOG_CASES,
    (
        ("bulkhead-queue", "warning"),
        waiting(17),
        "The queue of payments-api is 85 % full. 17 calls wait for a slot. When no place is left, further"
        " calls are refused. More than 80 % is a warning.",
        waiting(16),
    ),
    (
        ("certificate", "critical"),
        expires("certificate", 4.9),
        "Certificate shop expires in 4 days. At 00:48 UTC on 25 November. After that, browsers and pods"
        " refuse the connection.",
        expires("certificate", 5),
    ),
    (
        ("certificate", "warning"),
        expires("certificate", 20.9),
        "Certificate shop expires in 20 days. At 00:48 UTC on 11 December. After that, browsers and pods"
        " refuse the connection.",
        expires("certificate", 21),
    ),
    (
        ("hot-key", "warning"),
        figures(rules=[RuleFigures("acme", "requests", 9000, 0, 0, 8500, NOW - 30)]),
        "requests of acme is a hot key. 9000 calls/s, 8500/s of them from leases of pods, which spares its"
        " server of Redis. Nothing is refused because of it.",
        figures(rules=[RuleFigures("acme", "requests", 9000, 0, 0)]),
    ),
    (
        ("open-share", "critical"),
        was_open(30.1),
        "payments-api was open for 50 % of the last hour. It is closed now. More than 10 % is a warning,"
        " more than 50 % is critical.",
        was_open(29.9),
    ),
    (
        ("open-share", "warning"),
        was_open(6.1),
        "payments-api was open for 10 % of the last hour. It is closed now. More than 10 % is a warning,"
        " more than 50 % is critical.",
        was_open(5.9),
    ),
    (
        ("quota", "critical"),
        spent(1000),
        "100 % of cost of acme is spent. 1,000 of 1,000 cents until 03:13 UTC on 20 November. At least 80 %"
        " is a warning, at least 100 % is critical.",
        spent(999),
    ),
    (
        ("quota", "warning"),
        spent(800),
        "80 % of cost of acme is spent. 800 of 1,000 cents until 03:13 UTC on 20 November. At least 80 %"
        " is a warning, at least 100 % is critical.",
        spent(799),
    ),
    (
        ("quota", "warning"),
        spent(900),
        "90 % of cost of acme is spent. 900 of 1,000 cents until 03:13 UTC on 20 November. At least 80 %"
        " is a warning, at least 100 % is critical.",
        # It refuses nothing.
        spent(900, shadow=True),
    ),
    (
        ("quota", "warning"),
        spent(950),
        "95 % of cost of acme is spent. 950 of 1,000 cents until 03:13 UTC on 20 November. At least 80 %"
        " is a warning, at least 100 % is critical.",
        # Its period is over, and nobody has read the next one yet.
        spent(950, ends=NOW),
    ),
    (
        ("quota", "warning"),
        of_budget(300_000, warn_percent=30),
        "30 % of budget month of account main is spent. 0.30 USD of 1.00 USD until 03:13 UTC on 20 November."
        " At least 30 % is a warning, at least 100 % is critical.",
        of_budget(299_999, warn_percent=30),
    ),
    (
        ("quota", "warning"),
        # It only warns.
        of_budget(950_000, warn_percent=95, shadow=True),
        "95 % of budget month of account main is spent. 0.95 USD of 1.00 USD until 03:13 UTC on 20 November."
        " At least 95 % is a warning, at least 100 % is critical.",
        of_budget(949_999, warn_percent=95, shadow=True),
    ),
    (
        ("quota", "critical"),
        of_budget(1_000_000, warn_percent=0),
        "100 % of budget month of account main is spent. 1.00 USD of 1.00 USD until 03:13 UTC on 20 November."
        " At least 100 % is critical.",
        # It never warns.
        of_budget(999_999, warn_percent=0),
    ),
    (
        ("refused-caller", "warning"),
        refused(601, 5),
        "One address is refused again and again. About 601 refusals with this address in 10 minutes,"
        " estimated from 5 samples; pods may have counted more. Hot keys lists its tenant and limit beside"
        " the digest 00ff00ff00ff00ff.",
        refused(600, 5),
    ),
    (
        ("refused-caller", "warning"),
        refused(9_000, 9),
        "One address is refused again and again. About 9,000 refusals with this address in 10 minutes,"
        " estimated from 9 samples; pods may have counted more. Hot keys lists its tenant and limit beside"
        " the digest 00ff00ff00ff00ff.",
        # One sample that stands for many refusals is a guess.
        refused(9_000, 4),
    ),
    (
        ("runaway-tenant", "warning"),
        sends(101, 10),
        "acme sends 10 times its usual requests. 101/s now, 10.0/s in the median hour of the last 7 days.",
        sends(100, 10),
    ),
    (
        ("runaway-tenant", "warning"),
        sends(5, 0.1),
        "acme sends 50 times its usual requests. 5/s now, 0.1/s in the median hour of the last 7 days.",
        # So few requests hurt no other tenant.
        sends(4.9, 0.1),
    ),
    (
        ("burn", "warning"),
        of_budget(300_000, gone_after=0.25),
        "Budget month of account main ends after 25 % of its period. That is if spending goes on like this."
        " Its period ends at 03:13 UTC on 20 November. Less than 50 % of its period is a warning.",
        of_budget(300_000, gone_after=0.5),
    ),
    (
        ("drift", "warning"),
        drifted(103),
        "The ledger of account main is 3 % above its invoice of October 2026. 103.00 USD in the ledger,"
        " 100.00 USD on the invoice. More than 1 % is a warning.",
        drifted(101),
    ),
    (
        ("spend-jump", "warning"),
        jumped(31),
        "Calls to models are unusually expensive: 31.00 USD in the hour from 03:12 UTC on 20 November. 10.00"
        " USD in the mean of the same hour of the last 4 weeks. gpt-5.2 costs most of it.",
        jumped(30),
    ),
    (
        ("token", "critical"),
        expires("API token", 4.9),
        "API token shop expires in 4 days. At 00:48 UTC on 25 November. After that, what uses it is refused."
        " It is the next one of its kind.",
        expires("API token", 5),
    ),
    (
        ("token", "critical"),
        expires("agent token", -0.1),
        "Agent token shop has expired. At 00:48 UTC on 20 November. After that, what uses it is refused."
        " It is the next one of its kind.",
        expires("agent token", 6),
    ),
    (
        ("token", "warning"),
        expires("agent token", 20.9),
        "Agent token shop expires in 20 days. At 00:48 UTC on 11 December. After that, what uses it is"
        " refused. It is the next one of its kind.",
        expires("agent token", 21),
    ),
    (
        ("learned-low", "warning"),
        follows(449),
        "payments-api allows 49.9 % of per-minute. Pods apply 449 instead of 900: the vendor refuses calls,"
        " states less, or is slow.",
        follows(450),
    ),
    (
        ("vendor-429-pod", "warning"),
        refuses_one_pod(60),
        "payments-api refuses web-3 more often than the other pods. 60 of its 200 calls of 10 minutes (30 %),"
        " and 10 % of those of 5 others. It may use another key, or report what is not so. It alone moves no"
        " limit.",
        refuses_one_pod(59),
    ),
    (
        ("unpriced-model", "warning"),
        unpriced("gpt-9", 1_200),
        "gpt-9 has no price. 1,200 calls to openai in this hour and the last one cost nothing in the ledger"
        " and in budgets.",
        facts(),
    ),
    (
        ("unpriced-model", "warning"),
        unpriced("", 1),
        "A model without a name has no price. 1 call to openai in this hour and the last one cost nothing in"
        " the ledger and in budgets.",
        facts(),
    ),
    (
        ("vendor-429", "critical"),
        answered(too_many=101),
        f"payments-api answers 429. 101 of 1,000 calls in 7 min ended with 429. {VENDOR}",
        answered(too_many=100),
    ),
    (
        ("vendor-429", "warning"),
        answered(too_many=11),
        f"payments-api answers 429. 11 of 1,000 calls in 7 min ended with 429. {VENDOR}",
        answered(too_many=10),
    ),
    (
        ("vendor-auth", "critical"),
        answered(refused_account=101),
        "payments-api refuses our credentials. 101 of 1,000 calls in 7 min ended with 401, 402, or 403."
        f" Retries do not help: a person must act. {VENDOR}",
        answered(refused_account=100),
    ),
    (
        ("vendor-auth", "warning"),
        answered(refused_account=11),
        "payments-api refuses our credentials. 11 of 1,000 calls in 7 min ended with 401, 402, or 403."
        f" Retries do not help: a person must act. {VENDOR}",
        # Four of few calls are noise.
        facts(
            watched=Watched(vendors={"payments-api": VendorAnswers(minutes=7, calls=100, refused_account=4)})
        ),
    ),
]
