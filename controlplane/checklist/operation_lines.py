"""Pods, alerts, documentation, access, and what was tested."""

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta

from django.core.checks import WARNING

from controlplane.checklist.lines import Item, Line, listed
from controlplane.checklist.read_state import LATELY, TESTED_WITHIN, TOKENS_END_WITHIN, State
from controlplane.phrases import count
from fuseboard.contract.words import Mode

_INTEGRATION, _OBSERVED, _DOCUMENTED = "Integration", "Observability", "Documentation"
_ACCESS, _TESTED = "Access", "Tests"
#: The worker evaluates alerts every 5 s.
_EVALUATED_WITHIN = timedelta(seconds=60)
#: Above this part of what a server of Redis bears, twice the traffic is too much.
_BUSY_REDIS = 0.5


def lines(state: State) -> Iterator[Line]:
    yield from _pods(state)
    yield from _protected_pods(state)
    yield from _alerts(state)
    yield from _signals(state)
    yield _redis_capacity(state)
    yield from _documents(state)
    yield from _access(state)
    yield from _tests(state)


def _pods(state: State) -> Iterator[Line]:
    facts = state.status.facts
    pods = facts.live_servers
    item = Item(
        key="pod-live",
        group=_INTEGRATION,
        check="Pods report",
        do="Run fuseboard doctor in a pod: it names what keeps it from reporting.",
        doc="integration.md#1-install-and-configure",
    )
    if pods:
        yield item.ok(f"{len(pods)} live pods")
    elif not facts.figures.gateways:
        yield item.unchecked("No gateway reports, so it is not known which pods are live.")
    else:
        yield item.missing("No live pod")
    none = "No live pod reports."
    yield Item(
        key="pod-revision",
        group=_INTEGRATION,
        check="All live pods have the newest configuration",
        do="Open the page Pods: it displays what each pod lacks, and why.",
        doc="runbooks/configuration-lag.md",
    ).each(
        [pod.name for pod in pods if facts.behind(pod)],
        pods,
        wrong=f"lack revision {facts.revision}",
        right=f"All have revision {facts.revision}",
        none=none,
    )
    yield Item(
        key="pod-mode",
        group=_INTEGRATION,
        check="No pod decides without Redis",
        do="Find out why these pods do not reach Redis.",
        doc="runbooks/redis-unreachable.md",
    ).each(
        [pod.name for pod in pods if pod.mode != Mode.SHARED],
        pods,
        wrong="are not in the mode shared",
        right="All are in the mode shared",
        none=none,
    )
    versions = Counter(pod.version for pod in pods)
    newest = versions.most_common(1)[0][0] if versions else ""
    yield Item(
        key="pod-versions",
        group=_INTEGRATION,
        check="All pods run one version of the agent",
        do="Finish the rollout of the agent.",
        doc="integration.md#1-install-and-configure",
    ).each(
        [f"{pod.name} ({pod.version})" for pod in pods if pod.version != newest],
        pods,
        wrong=f"do not run {newest}, which most do",
        right=f"All run {newest}",
        none=none,
    )
    yield Item(
        key="pod-names",
        group=_INTEGRATION,
        check="Each process reports under its own name",
        do="Set FUSEBOARD_SERVER, or leave it out where each pod has a separate host name.",
        doc="runbooks/server-silent.md",
    ).each(list(facts.duplicated), pods, wrong="are used twice", right="No name is used twice", none=none)


def _protected_pods(state: State) -> Iterator[Line]:
    protection = state.status.facts.pod_protection
    item = Item(
        key="pod-shedding",
        group=_INTEGRATION,
        check="Overloaded pods shed requests",
        do="Switch on shedding, and let it observe first.",
        doc="protection.md#shedding",
    )
    yield item.ok("Shedding is on") if "shedding" in protection else item.attention("Shedding is off")
    item = Item(
        key="pod-readiness",
        group=_INTEGRATION,
        check="Readiness reflects sustained pressure",
        do="Switch on readiness, and let the readiness probe of your services ask the agent.",
        doc="protection.md#readiness",
    )
    yield item.ok("Readiness is on") if "readiness" in protection else item.attention("Readiness is off")
    routes = len(protection.get("routes", ()))
    item = Item(
        key="pod-routes",
        group=_INTEGRATION,
        check="Routes say how long a request should take",
        do="Add routes with sla_ms: without them, shedding does not know when a request is late.",
        doc="protection.md#shedding",
    )
    yield item.ok(f"{routes} routes") if routes else item.attention("No route has a time")
    yield Item(
        key="call-order",
        group=_INTEGRATION,
        check="Each attempt of a retry passes the breaker, and the timeout is inside of all",
        do="Confirm that services call through agent.call or a transport, and wrap no retry around it.",
        doc="protection.md#transports-that-retry",
    ).unchecked("The order is in the code of your services.")
    item = Item(
        key="environments",
        group=_INTEGRATION,
        check="There is another environment to try the configuration in",
        do="Create an environment such as staging, with separate limits and tokens.",
        doc="deployment.md#first-start",
    )
    found = count(state.environments, "environment")
    yield item.ok(found) if state.environments > 1 else item.attention(found)


def _alerts(state: State) -> Iterator[Line]:
    item = Item(
        key="alert-receivers",
        group=_OBSERVED,
        check="Each alert for people reaches a receiver, such as that a breaker opens",
        do="Add a receiver, or correct the routes.",
        doc="alerts.md#routes",
    )
    if not state.receivers:
        yield item.missing("No receiver gets alerts.")
    elif state.route_warnings:
        yield item.attention(" ".join(state.route_warnings))
    else:
        yield item.ok(f"{state.receivers} receivers, and no alert without one")
    item = Item(
        key="alert-delivery",
        group=_OBSERVED,
        check="Messages arrive",
        do="Send a test from the page Receivers, and read its result.",
        doc="alerts.md#receivers",
    )
    if state.gave_up:
        yield item.attention(f"{state.gave_up} messages of the last {LATELY.days} days were given up")
    elif state.sent_at is None:
        yield item.attention("No message was ever sent")
    else:
        yield item.ok(f"Last sent {state.sent_at:%Y-%m-%d %H:%M} UTC")
    item = Item(
        key="alert-evaluated",
        group=_OBSERVED,
        check="A worker evaluates the alert rules",
        do="Start worker and beat.",
        doc="runbooks/worker-away.md",
    )
    at = state.evaluated_at
    if at is None:
        yield item.missing("Never evaluated")
    else:
        found = f"Last evaluated {at:%Y-%m-%d %H:%M:%S} UTC"
        yield item.ok(found) if state.now - at < _EVALUATED_WITHIN else item.missing(found)
    item = Item(
        key="alert-open",
        group=_OBSERVED,
        check="No alert of level 2 or 3 is firing",
        do="Resolve it before the deployment.",
        doc="alerts.md#rules",
    )
    yield item.attention(listed(state.open_alerts)) if state.open_alerts else item.ok("None is firing")
    item = Item(
        key="alert-mutes",
        group=_OBSERVED,
        check="No alert is muted by mistake",
        do="Read the mutes, and end those that are not meant.",
        doc="alerts.md#mute-alerts",
    )
    yield item.confirm(f"{state.mutes} mutes") if state.mutes else item.ok("No mute")


def _signals(state: State) -> Iterator[Line]:
    item = Item(
        key="watchdog",
        group=_OBSERVED,
        check="Something outside notices that alerts are not evaluated",
        do="Set FUSEBOARD_WATCHDOG_URL for worker and gateway.",
        doc="alerts.md#watchdog",
    )
    found = "FUSEBOARD_WATCHDOG_URL is set here"
    yield (
        item.ok(found)
        if state.watchdog
        else item.unchecked(
            "FUSEBOARD_WATCHDOG_URL is not set for this web process; the worker's is not known"
        )
    )
    item = Item(
        key="metrics-scraped",
        group=_OBSERVED,
        check="A metrics store can read metrics",
        do="Create a token of the role metrics, or set FUSEBOARD_METRICS_TOKEN.",
        doc="deployment.md#monitoring",
    )
    if state.metrics_setting or state.metrics_tokens:
        setting = ", and FUSEBOARD_METRICS_TOKEN" if state.metrics_setting else ""
        yield item.ok(f"{state.metrics_tokens} valid tokens{setting}")
    else:
        yield item.attention("No token can read metrics")
    traces = [trace for one in state.dependencies for trace in one.traces]
    item = Item(
        key="traces",
        group=_OBSERVED,
        check="Failed calls carry the trace of their request",
        do="Let services pass on the W3C header traceparent.",
        doc="breakers.md#the-last-failures",
    )
    if not traces:
        yield item.unchecked("No pod has reported a failed call lately.")
    else:
        traced = sum(bool(trace) for trace in traces)
        found = f"{traced} of {len(traces)} samples have a trace id"
        yield item.ok(found) if traced else item.attention(found)


def _redis_capacity(state: State) -> Line:
    """Each server of Redis executes commands in one thread: it is full long before its machine is."""
    item = Item(
        key="redis-capacity",
        group=_OBSERVED,
        check="The load of Redis is measured, and far from what it bears",
        do="Use a Cluster or a faster machine; or set FUSEBOARD_REDIS_CAPACITY_OPS to what a server bears.",
        doc="runbooks/redis-busy.md",
    )
    servers = [one for one in state.status.facts.redis_servers if one.answers]
    known = [one for one in servers if one.capacity_ops]
    if not servers:
        return item.unchecked("The worker has read no server of Redis within the last minute.")
    if not known:
        busiest = max(one.ops_per_s for one in servers)
        return item.unchecked(
            f"{busiest:,.0f} commands/s. What a server bears is measured from 10 % of a core on."
        )
    worst = max(known, key=lambda one: one.used)
    found = f"{worst.address}: {worst.used:.0%} of {worst.capacity_ops:,} commands/s".replace("%", " %")
    return item.attention(found) if worst.used > _BUSY_REDIS else item.ok(found)


def _documents(state: State) -> Iterator[Line]:
    every = state.dependencies
    yield Item(
        key="runbooks",
        group=_DOCUMENTED,
        check="Each dependency has its runbook",
        do="Choose a runbook in the editor of the dependency.",
        doc="incidents.md#what-people-do",
    ).each(
        [one.name for one in every if one.row.runbook_id is None],
        every,
        wrong="have no runbook",
        right="All have a runbook",
    )
    yield Item(
        key="owners",
        group=_DOCUMENTED,
        check="Each dependency has an owner",
        do="Enter the owner: alerts can be routed by it.",
        doc="alerts.md#routes",
    ).each(
        [one.name for one in every if not one.row.owner],
        every,
        wrong="have no owner",
        right="All have an owner",
    )
    yield Item(
        key="documents",
        group=_DOCUMENTED,
        check="Your API documents its 429 and 503 answers, Retry-After, and degraded answers",
        do="Confirm it in the documentation of your services.",
        doc="integration.md#why-was-this-refused",
    ).confirm("The documentation of your services is not here.")


def _access(state: State) -> Iterator[Line]:
    item = Item(
        key="deployment-settings",
        group=_ACCESS,
        check="The settings of this web process are fit for production",
        do="Run manage.py check --deploy in each process: it prints what to set.",
        doc="settings.md#control-plane",
    )
    serious = [message.msg for message in state.settings_found if message.level >= WARNING]
    notices = [message.msg for message in state.settings_found if message.level < WARNING]
    if serious:
        yield item.attention(" ".join(serious + notices))
    else:
        yield item.confirm(" ".join(notices)) if notices else item.ok("Nothing found")
    item = Item(
        key="admins",
        group=_ACCESS,
        check="At least two people are admins",
        do="Invite a second admin, so that one person's absence blocks nothing.",
        doc="deployment.md#login",
    )
    found = count(state.admins, "active admin")
    yield item.ok(found) if state.admins > 1 else item.attention(found)
    item = Item(
        key="agent-tokens",
        group=_ACCESS,
        check=f"Tokens of pods are valid for {TOKENS_END_WITHIN.days} days or longer",
        do="Rotate the token: the old one stays valid for an overlap.",
        doc="runbooks/token-or-certificate-expires.md",
    )
    ending = [row.name for row in state.agent_tokens if row.expires_at < state.now + TOKENS_END_WITHIN]
    if not state.agent_tokens:
        yield item.missing("There is no valid token of pods")
    else:
        yield item.each(ending, state.agent_tokens, wrong="end soon", right="No token ends soon")
    yield Item(
        key="backups",
        group=_ACCESS,
        check="Postgres is backed up, and a restore was tried",
        do="Restore a backup on another server once, and start a new epoch there.",
        doc="runbooks/postgres-restored.md",
    ).confirm("Backups are made outside of Fuseboard.")


def _tests(state: State) -> Iterator[Line]:
    item = Item(
        key="drill",
        group=_TESTED,
        check=f"A drill without Redis took place within {TESTED_WITHIN.days} days",
        do="Start a drill on a part of the pods.",
        doc="runbooks/drill.md",
    )
    if state.drill_at is None:
        yield item.attention("There was no drill.")
    else:
        found = f"Last drill {state.drill_at:%Y-%m-%d}"
        yield item.ok(found) if state.now - state.drill_at < TESTED_WITHIN else item.attention(found)
    for key, check, do, doc in _TO_CONFIRM:
        yield Item(key=key, group=_TESTED, check=check, do=do, doc=doc).confirm("Only a person knows.")


_TO_CONFIRM = (
    (
        "load-test",
        "The services bear the expected load, degrade at twice of it, and recover after it",
        "Run a load test with the limits and the protection of production.",
        "experiments.md#t23-overload-and-recovery",
    ),
    (
        "isolation",
        "Saturated optional calls leave critical calls as fast as before",
        "Saturate the tier optional in a load test.",
        "experiments.md#t19-a-bulkhead-isolates-the-tiers",
    ),
    (
        "cascade",
        "One failing dependency makes no other one fail, and recovery needs no person",
        "Let each dependency fail in a test environment.",
        "experiments.md#t18-breaker-bulkhead-and-fallback-one-by-one",
    ),
    (
        "leaks",
        "Fallbacks and errors reveal nothing that the caller may not see",
        "Read the fallback answers and errors of your services.",
        "protection.md#fallbacks",
    ),
)
