"""Descriptors that Envoy asked for lately, over all gateways: by rule, and those that no rule matched."""

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from controlplane.fleet.models import DescriptorFigures, Server, ServerState
from fuseboard.contract.descriptor_tallies import MAX_DOMAIN, MAX_EXAMPLES, shortened

#: Gateways count in steps of three minutes. With the step that runs, these are 15 to 18 minutes.
STEP_S = 180
STEPS = 6
#: Lists of keys of one domain, and pods, that are displayed.
MAX_SHOWN = 50
#: Rows that are read: domains of all gateways.
_MAX_ROWS = 1_000


@dataclass(frozen=True, kw_only=True)
class RuleFigures:
    """Descriptors that one rule decided."""

    asked: int
    refused: int
    #: Descriptors that the rule would have refused if it were not in shadow mode.
    shadow: int


@dataclass(frozen=True, kw_only=True)
class UnmatchedFigures:
    """Descriptors with the same keys that no rule matched."""

    #: The keys in their order, as ``descriptor_tallies.joined`` writes them.
    keys: str
    asked: int
    #: Values of at most three of them, joined like the keys, without ids.
    examples: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class DomainFigures:
    domain: str
    #: By the names that ``descriptor_tallies.rule_of`` gives to rules. A rule that no descriptor met is not
    #: in it.
    rules: dict[str, RuleFigures]
    #: The most frequent keys first.
    unmatched: tuple[UnmatchedFigures, ...]
    #: All descriptors that no rule matched, also those with keys that are not listed.
    unmatched_total: int


@dataclass(frozen=True, kw_only=True)
class AnsweringPod:
    """A pod that answered Envoy lately."""

    name: str
    service: str
    #: A ``ServerState``: it may be offline by now.
    state: str
    revision: int
    started_at: datetime
    #: Descriptors that it answered, at least.
    asked: int


@dataclass(frozen=True, kw_only=True)
class AskedLately:
    #: From when descriptors are counted, in unix seconds.
    since: float
    #: Pod -> descriptors that it answered, at least. Those with the most, and those first.
    pods: dict[str, int]
    #: Pods that answered, at least, also those that are not in ``pods``.
    pods_total: int
    #: Domains with descriptors, in the order of their names.
    domains: tuple[DomainFigures, ...]

    def of(self, domain: str) -> DomainFigures:
        """The figures of one domain. All are 0 if no descriptor had it."""
        nothing = DomainFigures(domain=domain, rules={}, unmatched=(), unmatched_total=0)
        counted = shortened(domain, MAX_DOMAIN)
        return next((one for one in self.domains if one.domain == counted), nothing)


def asked_lately(environment: str, now: float) -> AskedLately:
    """Descriptors of the last 15 to 18 minutes until ``now`` (unix)."""
    since = (int(now) // STEP_S - STEPS + 1) * STEP_S
    recent = DescriptorFigures.objects.filter(
        environment=environment, at__gt=timezone.now() - timedelta(seconds=STEPS * STEP_S)
    )
    rows = recent.order_by("domain", "gateway")
    steps: dict[str, list[dict[str, Any]]] = {}
    pods: Counter[str] = Counter()
    most_pods = 0
    for domain, document in rows.values_list("domain", "document")[:_MAX_ROWS]:
        found = [step for at, step in document["steps"] if at >= since]
        steps.setdefault(domain, []).extend(found)
        for step in found:
            # An older gateway writes neither.
            pods.update(dict(step.get("pods", ())))
            most_pods = max(most_pods, step.get("pods_total", 0))
    return AskedLately(
        since=since,
        pods=dict(pods.most_common(MAX_SHOWN)),
        pods_total=max(most_pods, len(pods)),
        domains=tuple(_sum(domain, found) for domain, found in steps.items() if found),
    )


def answering_pods(environment: str, asked: AskedLately) -> list[AnsweringPod]:
    """The pods that answered Envoy lately, the busiest first, at most ``MAX_SHOWN``; not those that left."""
    rows = Server.objects.filter(environment=environment, name__in=asked.pods)
    rows = rows.exclude(state=ServerState.GONE)
    known = {row["name"]: row for row in rows.values("name", "service", "state", "revision", "started_at")}
    return [AnsweringPod(**known[pod], asked=count) for pod, count in asked.pods.items() if pod in known]


def _sum(domain: str, steps: list[dict[str, Any]]) -> DomainFigures:
    rules: dict[str, list[int]] = {}
    unmatched: Counter[str] = Counter()
    examples: dict[str, dict[str, None]] = {}
    for step in steps:
        for rule, counts in step["rules"].items():
            sums = rules.setdefault(rule, [0, 0, 0])
            for place, count in enumerate(counts):
                sums[place] += count
        for keys, asked, values in step["unmatched"]:
            unmatched[keys] += asked
            examples.setdefault(keys, {}).update(dict.fromkeys(values))
    most = sorted(unmatched.items(), key=lambda one: (-one[1], one[0]))[:MAX_SHOWN]
    return DomainFigures(
        domain=domain,
        rules={
            rule: RuleFigures(asked=asked, refused=refused, shadow=shadow)
            for rule, (asked, refused, shadow) in sorted(rules.items())
        },
        unmatched=tuple(
            UnmatchedFigures(keys=keys, asked=asked, examples=tuple(examples[keys])[:MAX_EXAMPLES])
            for keys, asked in most
        ),
        unmatched_total=sum(step["unmatched_total"] for step in steps),
    )
