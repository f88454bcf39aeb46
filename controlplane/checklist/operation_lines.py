"""Pods, alerts, documentation, access, and what was tested."""

from collections import Counter
from datetime import timedelta

from django.core.checks import WARNING

from controlplane.checklist.lines import (
    Answer,
    Check,
    Item,
    Verdict,
    always,
    each,
    each_dependency,
    listed,
    ok_if,
)
from controlplane.checklist.read_state import LATELY, TESTED_WITHIN, TOKENS_END_WITHIN, State
from controlplane.installation import COMMAND
from controlplane.phrases import count
from fuseboard.contract.words import Mode

#: The worker evaluates alerts every 5 s.
_EVALUATED_WITHIN = timedelta(seconds=60)
#: Above this part of what a server of Redis bears, twice the traffic is too much.
_BUSY_REDIS = 0.5
_NO_POD = "No live pod reports."


def _live(state: State) -> Answer:
    facts = state.status.facts
    if facts.live_servers:
        return Verdict.OK, f"{len(facts.live_servers)} live pods"
    if not facts.figures.gateways:
        return Verdict.UNCHECKED, "No gateway reports, so it is not known which pods are live."
    return Verdict.MISSING, "No live pod"


def _revisions(state: State) -> Answer:
    facts = state.status.facts
    return each(
        [pod.name for pod in facts.live_servers if facts.behind(pod)],
        facts.live_servers,
        f"lack revision {facts.revision}",
        f"All have revision {facts.revision}",
        none=_NO_POD,
    )


def _modes(state: State) -> Answer:
    pods = state.status.facts.live_servers
    bad = [pod.name for pod in pods if pod.mode != Mode.SHARED]
    return each(bad, pods, "are not in the mode shared", "All are in the mode shared", none=_NO_POD)


def _versions(state: State) -> Answer:
    pods = state.status.facts.live_servers
    versions = Counter(pod.version for pod in pods)
    newest = versions.most_common(1)[0][0] if versions else ""
    bad = [f"{pod.name} ({pod.version})" for pod in pods if pod.version != newest]
    return each(bad, pods, f"do not run {newest}, which most do", f"All run {newest}", none=_NO_POD)


def _names(state: State) -> Answer:
    facts = state.status.facts
    bad = list(facts.duplicated)
    return each(bad, facts.live_servers, "are used twice", "No name is used twice", none=_NO_POD)


def _pods_have(part: str) -> Check:
    name = part.capitalize()
    return lambda state: ok_if(part in state.status.facts.pod_protection, f"{name} is on", f"{name} is off")


def _routes(state: State) -> Answer:
    routes = len(state.status.facts.pod_protection.get("routes", ()))
    return ok_if(routes, f"{routes} routes", "No route has a time")


def _receivers(state: State) -> Answer:
    if not state.receivers:
        return Verdict.MISSING, "No receiver gets alerts."
    if state.route_warnings:
        return Verdict.ATTENTION, " ".join(state.route_warnings)
    return Verdict.OK, f"{state.receivers} receivers, and no alert without one"


def _delivery(state: State) -> Answer:
    if state.gave_up:
        return Verdict.ATTENTION, f"{state.gave_up} messages of the last {LATELY.days} days were given up"
    if state.sent_at is None:
        return Verdict.ATTENTION, "No message was ever sent"
    return Verdict.OK, f"Last sent {state.sent_at:%Y-%m-%d %H:%M} UTC"


def _evaluated(state: State) -> Answer:
    at = state.evaluated_at
    if at is None:
        return Verdict.MISSING, "Never evaluated"
    found = f"Last evaluated {at:%Y-%m-%d %H:%M:%S} UTC"
    return ok_if(state.now - at < _EVALUATED_WITHIN, found, worst=Verdict.MISSING)


def _watchdog(state: State) -> Answer:
    unset = "FUSEBOARD_WATCHDOG_URL is not set for this web process; the worker's is not known"
    return ok_if(state.watchdog, "FUSEBOARD_WATCHDOG_URL is set here", unset, worst=Verdict.UNCHECKED)


def _metrics(state: State) -> Answer:
    if not state.metrics_setting and not state.metrics_tokens:
        return Verdict.ATTENTION, "No token can read metrics"
    setting = ", and FUSEBOARD_METRICS_TOKEN" if state.metrics_setting else ""
    return Verdict.OK, f"{state.metrics_tokens} valid tokens{setting}"


def _old_names(state: State) -> Answer:
    used = [f"{name} ({count(uses, 'use')})" for name, uses in state.old_names.items()]
    return ok_if(not used, "None was used since this web process started", listed(used))


def _traces(state: State) -> Answer:
    traces = [trace for one in state.dependencies for trace in one.traces]
    if not traces:
        return Verdict.UNCHECKED, "No pod has reported a failed call lately."
    traced = sum(bool(trace) for trace in traces)
    found = f"{traced} of {len(traces)} samples have a trace id"
    return ok_if(traced, found)


def _redis_capacity(state: State) -> Answer:
    """Each server of Redis executes commands in one thread: it is full long before its machine is."""
    servers = [one for one in state.status.facts.redis_servers if one.answers]
    known = [one for one in servers if one.capacity_ops]
    if not servers:
        return Verdict.UNCHECKED, "The worker has read no server of Redis within the last minute."
    if not known:
        found = f"{max(one.ops_per_s for one in servers):,.0f} commands/s."
        return Verdict.UNCHECKED, f"{found} What a server bears is measured from 10 % of a core on."
    worst = max(known, key=lambda one: one.used)
    found = f"{worst.address}: {worst.used:.0%} of {worst.capacity_ops:,} commands/s".replace("%", " %")
    return ok_if(worst.used <= _BUSY_REDIS, found)


def _settings(state: State) -> Answer:
    serious = [message.msg for message in state.settings_found if message.level >= WARNING]
    notices = [message.msg for message in state.settings_found if message.level < WARNING]
    if serious:
        return Verdict.ATTENTION, " ".join(serious + notices)
    return ok_if(not notices, "Nothing found", " ".join(notices), worst=Verdict.CONFIRM)


def _agent_tokens(state: State) -> Answer:
    tokens = state.agent_tokens
    if not tokens:
        return Verdict.MISSING, "There is no valid token of pods"
    ending = [row.name for row in tokens if row.expires_at < state.now + TOKENS_END_WITHIN]
    return each(ending, tokens, "end soon", "No token ends soon")


def _drill(state: State) -> Answer:
    if state.drill_at is None:
        return Verdict.ATTENTION, "There was no drill."
    found = f"Last drill {state.drill_at:%Y-%m-%d}"
    return ok_if(state.now - state.drill_at < TESTED_WITHIN, found)


_only_a_person = always(Verdict.CONFIRM, "Only a person knows.")

GROUPS = {
    "Integration": (
        Item(
            "pod-live",
            "Pods report",
            "Run fuseboard doctor in a pod: it names what keeps it from reporting.",
            "integration.md#1-install-and-configure",
            _live,
        ),
        Item(
            "pod-revision",
            "All live pods have the newest configuration",
            "Open the page Pods: it displays what each pod lacks, and why.",
            "runbooks/configuration-lag.md",
            _revisions,
        ),
        Item(
            "pod-mode",
            "No pod decides locally",
            "Find out why these pods do not reach Redis.",
            "runbooks/redis-unreachable.md",
            _modes,
        ),
        Item(
            "pod-versions",
            "All pods run one version of the agent",
            "Finish the rollout of the agent.",
            "integration.md#1-install-and-configure",
            _versions,
        ),
        Item(
            "pod-names",
            "Each process reports under its own name",
            "Set FUSEBOARD_SERVER, or leave it out where each pod has a separate host name.",
            "runbooks/server-silent.md",
            _names,
        ),
        Item(
            "pod-shedding",
            "Overloaded pods shed requests",
            "Switch on shedding, and let it observe first.",
            "protection.md#shedding",
            _pods_have("shedding"),
        ),
        Item(
            "pod-readiness",
            "Readiness reflects sustained pressure",
            "Switch on readiness, and let the readiness probe of your services ask the agent.",
            "protection.md#readiness",
            _pods_have("readiness"),
        ),
        Item(
            "pod-routes",
            "Routes say how long a request should take",
            "Add routes with sla_ms: without them, shedding does not know when a request is late.",
            "protection.md#shedding",
            _routes,
        ),
        Item(
            "old-names",
            "Programs use no name of the API that a release will remove",
            "Replace them before the next minor release: the API's document names the new ones.",
            "upgrading.md#old-names",
            _old_names,
        ),
        Item(
            "call-order",
            "Each attempt of a retry passes the breaker, and the timeout is inside of all",
            "Confirm that services call through agent.call or a transport, and wrap no retry around it.",
            "protection.md#transports-that-retry",
            always(Verdict.UNCHECKED, "The order is in the code of your services."),
        ),
        Item(
            "environments",
            "There is another environment to try the configuration in",
            "Create an environment such as staging, with separate limits and tokens.",
            "deployment.md#first-start",
            lambda state: ok_if(state.environments > 1, count(state.environments, "environment")),
        ),
    ),
    "Observability": (
        Item(
            "alert-receivers",
            "Each alert for people reaches a receiver, such as that a breaker opens",
            "Add a receiver, or correct the routes.",
            "alerts.md#routes",
            _receivers,
        ),
        Item(
            "alert-delivery",
            "Messages arrive",
            "Send a test from the page Receivers, and read its result.",
            "alerts.md#receivers",
            _delivery,
        ),
        Item(
            "alert-evaluated",
            "A worker evaluates the alert rules",
            "Start worker and beat.",
            "runbooks/worker-away.md",
            _evaluated,
        ),
        Item(
            "alert-open",
            "No alert of level 2 or 3 is firing",
            "Resolve it before the deployment.",
            "alerts.md#rules",
            lambda state: ok_if(not state.open_alerts, "None is firing", listed(state.open_alerts)),
        ),
        Item(
            "alert-mutes",
            "No alert is muted by mistake",
            "Read the mutes, and end those that are not meant.",
            "alerts.md#mute-alerts",
            lambda state: ok_if(not state.mutes, "No mute", f"{state.mutes} mutes", worst=Verdict.CONFIRM),
        ),
        Item(
            "watchdog",
            "Something outside notices that alerts are not evaluated",
            "Set FUSEBOARD_WATCHDOG_URL for worker and gateway.",
            "alerts.md#watchdog",
            _watchdog,
        ),
        Item(
            "metrics-scraped",
            "A metrics store can read metrics",
            "Create a token of the role metrics, or set FUSEBOARD_METRICS_TOKEN.",
            "deployment.md#monitoring",
            _metrics,
        ),
        Item(
            "traces",
            "Failed calls carry the trace of their request",
            "Let services pass on the W3C header traceparent.",
            "breakers.md#the-last-failures",
            _traces,
        ),
        Item(
            "redis-capacity",
            "The load of Redis is measured, and far from what it bears",
            "Use a Cluster or a faster machine; or set FUSEBOARD_REDIS_CAPACITY_OPS to what a server bears.",
            "runbooks/redis-busy.md",
            _redis_capacity,
        ),
    ),
    "Documentation": (
        Item(
            "runbooks",
            "Each dependency has its runbook",
            "Choose a runbook in the editor of the dependency.",
            "incidents.md#what-people-do",
            each_dependency(lambda one: one.row.runbook_id is None, "have no runbook", "All have a runbook"),
        ),
        Item(
            "owners",
            "Each dependency has an owner",
            "Enter the owner: alerts can be routed by it.",
            "alerts.md#routes",
            each_dependency(lambda one: not one.row.owner, "have no owner", "All have an owner"),
        ),
        Item(
            "documents",
            "Your API documents its 429 and 503 answers, Retry-After, and degraded answers",
            "Confirm it in the documentation of your services.",
            "integration.md#why-was-this-refused",
            always(Verdict.CONFIRM, "The documentation of your services is not here."),
        ),
    ),
    "Access": (
        Item(
            "deployment-settings",
            "The settings of this web process are fit for production",
            f"Run {COMMAND} check --deploy in each process: it prints what to set.",
            "settings.md#control-plane",
            _settings,
        ),
        Item(
            "admins",
            "At least two people are admins",
            "Invite a second admin, so that one person's absence blocks nothing.",
            "deployment.md#login",
            lambda state: ok_if(state.admins > 1, count(state.admins, "active admin")),
        ),
        Item(
            "agent-tokens",
            f"Tokens of pods are valid for {TOKENS_END_WITHIN.days} days or longer",
            "Rotate the token: the old one stays valid for an overlap.",
            "runbooks/token-or-certificate-expires.md",
            _agent_tokens,
        ),
        Item(
            "backups",
            "Postgres is backed up, and a restore was tried",
            "Restore a backup on another server once, and start a new epoch there.",
            "runbooks/postgres-restored.md",
            always(Verdict.CONFIRM, "Backups are made outside of Fuseboard."),
        ),
    ),
    "Tests": (
        Item(
            "drill",
            f"A drill without Redis took place within {TESTED_WITHIN.days} days",
            "Start a drill on a part of the pods.",
            "runbooks/drill.md",
            _drill,
        ),
        Item(
            "load-test",
            "The services bear the expected load, degrade at twice of it, and recover after it",
            "Run a load test with the limits and the protection of production.",
            "experiments.md#t23-overload-and-recovery",
            _only_a_person,
        ),
        Item(
            "isolation",
            "Saturated optional calls leave critical calls as fast as before",
            "Saturate the tier optional in a load test.",
            "experiments.md#t19-a-bulkhead-isolates-the-tiers",
            _only_a_person,
        ),
        Item(
            "cascade",
            "One failing dependency makes no other one fail, and recovery needs no person",
            "Let each dependency fail in a test environment.",
            "experiments.md#t18-breaker-bulkhead-and-fallback-one-by-one",
            _only_a_person,
        ),
        Item(
            "leaks",
            "Fallbacks and errors reveal nothing that the caller may not see",
            "Read the fallback answers and errors of your services.",
            "protection.md#fallbacks",
            _only_a_person,
        ),
    ),
}
