"""The cost of 100,000 tenants: published, compared, found on a page; and the delay until an edit applies.

Beside our publisher runs the obvious solution: a loop over the tenants, one ``SET`` each with
everything a pod must know of that tenant. It runs over a twentieth of them, times twenty. Run it as
``python tools/bench/publishing.py``; ``docs/benchmarks.md`` explains each line.
"""

import statistics
import sys
import threading
import time
from collections import defaultdict

import msgspec
from control_plane.enforcement import enforced_ms
from control_plane.stand import Bars, add_tenants, bench, control_plane, say, timed, within

TENANTS = 100_000
RULES = 8
#: The other solution is slow: each turn has this part of the tenants.
SHARE = 20
ROUNDS = 5
EDITS = 150
#: For the whole script; an idle machine needs a quarter of it.
MAX_S = 420


def publish_naively(store, turn):
    """One tenant after the other; a pod reads one key to know everything about it."""
    from controlplane.policies.document import limit_of
    from controlplane.policies.models import Tenant, TierQuota

    tiers = defaultdict(dict)
    for quota in TierQuota.objects.all():
        tiers[quota.tier_id][quota.name] = limit_of(quota)
    rows = Tenant.objects.select_related("tier").prefetch_related("quotas").order_by("id")
    for row in rows[turn * TENANTS // SHARE : (turn + 1) * TENANTS // SHARE]:
        quotas = tiers[row.tier_id] | {quota.name: limit_of(quota) for quota in row.quotas.all()}
        document = {"tier": row.tier.name, "suspended": row.suspended, "quotas": list(quotas.values())}
        store.set(f"tenant:{row.key}", msgspec.json.encode(document))


def size_of(store):
    """Bytes of every key, as the server counts them."""
    cursor, total = 0, 0
    while True:
        cursor, keys = store.scan(cursor, count=2_000)
        pipe = store.pipeline(transaction=False)
        for key in keys:
            pipe.memory_usage(key, samples=0)
        total += sum(pipe.execute())
        if not cursor:
            return total


def measure_publishing(bars):
    from controlplane.publishing.publish import publish_head
    from controlplane.redis.scripts import PATIENT_S, limits
    from controlplane.repair.tenant_digests import reconcile_tenants

    store = limits(deadline_s=PATIENT_S)
    ours, naive = [], []
    for turn in range(ROUNDS):
        store.flushall()
        naive.append(timed(publish_naively, store, turn)[0] * SHARE)
        naive_size = size_of(store) * SHARE
        store.flushall()
        ours.append(timed(publish_head, "production")[0])
    our_size = size_of(store)
    settled = [timed(reconcile_tenants, "production") for _ in range(3)]
    assert not any(found for _, found in settled), "nothing was damaged, yet something was repaired"
    took = statistics.median(ours)
    say(f"{TENANTS:,} tenants, {RULES} quotas per tier, one in twenty with a quota of its own:")
    theirs = statistics.median(naive)
    say(f"ours {took:.2f} s, {our_size / 1e6:.1f} MB; a SET each {theirs:.1f} s, {naive_size / 1e6:.1f} MB")
    ratios = [other / mine for other, mine in zip(naive, ours, strict=True)]
    bars.ratio("publish_vs_naive", statistics.median(ratios), 25)
    bars.ratio("publish_size_vs_naive", naive_size / our_size, 20)
    bars.at_most("digest_reconcile", statistics.median(s for s, _ in settled) * 1000, 1_000, "ms")


def measure_pages(bars, keys):
    from django.conf import settings
    from django.test import Client, override_settings

    from controlplane.accounts.models import User

    user = User.objects.create(username="bench", role="admin")
    with override_settings(SECURE_SSL_REDIRECT=False, ALLOWED_HOSTS=["*"]):
        client = Client()
        client.force_login(user, backend=settings.AUTHENTICATION_BACKENDS[0])
        pages = {
            "tenants_page": "/tenants",
            "tenants_last_page": f"/tenants?after={sorted(keys)[-51]}",
            "tenant_search": f"/tenants?q={keys[500][:12]}",
            "tenant_search_of_nobody": "/tenants?q=nobody+is+called+that",
            "tenant_search_broad": "/tenants?q=customer+99",
        }
        for name, path in pages.items():
            took = []
            for _ in range(7):
                seconds, answer = timed(client.get, path)
                assert answer.status_code == 200, (path, answer.status_code, answer.headers)
                took.append(seconds)
            bars.at_most(name, statistics.median(took) * 1000, 100, "ms")


def measure_edits(bars, keys):
    """From the call of the edit function until a subscriber of Redis receives its revision."""
    from controlplane.editing import edits
    from controlplane.redis.scripts import limits
    from fuseboard.contract import keys as names
    from fuseboard.contract.sync import decode_nudge

    heard, ready = {}, threading.Event()

    def listen():
        with limits(deadline_s=5).pubsub() as subscription:
            subscription.subscribe(names.config_channel("production"))
            subscription.get_message(timeout=5)
            ready.set()
            while len(heard) < EDITS:
                message = subscription.get_message(timeout=5)
                if message is None:
                    return
                heard[decode_nudge(message["data"]).revision] = time.perf_counter()

    thread = threading.Thread(target=listen)
    thread.start()
    ready.wait(5)
    begun = {}
    for n in range(EDITS):
        at = time.perf_counter()
        revision = edits.set_tenant_quota(
            environment="production", tenant=keys[n * 7], quota="requests", limit=1_000 + n, window_s=60,
            burst=10, expected_version=None, reason="a benchmark", actor=bench(),
        )  # fmt: skip
        begun[revision] = at
    thread.join(10)
    took = sorted((heard[revision] - at) * 1000 for revision, at in begun.items() if revision in heard)
    assert len(took) == EDITS, f"{EDITS - len(took)} edits were never heard of"
    say(f"edit to Redis: p50 {took[len(took) // 2]:.1f} ms, of {EDITS} edits")
    bars.at_most("edit_to_redis_p99", took[int(len(took) * 0.99)], 50, "ms")


def main():
    from controlplane.editing import edits
    from controlplane.policies.models import Tier

    keys = add_tenants(TENANTS)
    for tier in Tier.objects.filter(environment="production").values_list("name", flat=True):
        for n in range(1, RULES):
            edits.set_tier_quota(
                environment="production", tier=tier, quota=f"rule-{n}", limit=100 * n, window_s=60, burst=n,
                expected_version=None, reason="a benchmark", actor=bench(),
            )  # fmt: skip
    bars = Bars()
    measure_publishing(bars)
    measure_pages(bars, keys)
    measure_edits(bars, keys)
    enforced_ms(bars, keys)
    return bars.status


if __name__ == "__main__":
    within(MAX_S)
    with control_plane(FUSEBOARD_BEAT_MS="1000"):
        status = main()
    sys.exit(status)
