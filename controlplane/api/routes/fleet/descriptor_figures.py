from dataclasses import asdict
from datetime import datetime
from time import time
from typing import Any

from django.http import HttpRequest
from ninja import Router, Schema

from controlplane.api.schemas import FromObject, UnixTime
from controlplane.api.schemas.edits_in import Environment
from controlplane.fleet.descriptor_figures import DomainFigures, answering_pods, asked_lately
from controlplane.policies.document import environment_of

router = Router()


class DescriptorRuleOut(Schema):
    #: The rule with those above it: "tenant > path=/v1/*". Longer than 200 characters, it ends with a digest.
    rule: str
    asked: int
    refused: int
    #: Descriptors that the rule would have refused if it were not in shadow mode.
    shadow: int


class UnmatchedDescriptorsOut(FromObject):
    #: The keys, joined like the rules.
    keys: str
    asked: int
    #: Values of at most three descriptors, cut at 40 characters, with {id} for what identifies something.
    examples: list[str]


class DescriptorDomainOut(FromObject):
    domain: str
    #: Rules that a descriptor met.
    rules: list[DescriptorRuleOut]
    #: At most 50, the most frequent keys first.
    unmatched: list[UnmatchedDescriptorsOut]
    #: All descriptors that no rule matched.
    unmatched_total: int

    @staticmethod
    def resolve_rules(found: DomainFigures) -> list[dict[str, Any]]:
        return [{"rule": rule, **asdict(one)} for rule, one in found.rules.items()]


class AnsweringPodOut(FromObject):
    name: str
    service: str
    state: str
    revision: int
    started_at: datetime
    #: Descriptors that it answered, at least.
    asked: int


class DescriptorFiguresOut(Schema):
    #: From when descriptors are counted: 15 to 18 minutes ago.
    since: UnixTime
    domains: list[DescriptorDomainOut]
    #: Pods that answered Envoy and did not leave: at most 50, the busiest first.
    pods: list[AnsweringPodOut]
    #: Pods that answered Envoy, at least, also those that are not in the list.
    pods_total: int


@router.get("", response=DescriptorFiguresOut)
def read_descriptor_figures(request: HttpRequest, environment: Environment) -> dict[str, Any]:
    """Descriptors that Envoy asked for in the last 15 minutes, by rule, and the pods that answered."""
    slug = environment_of(environment).slug
    found = asked_lately(slug, time())
    return {
        "since": found.since,
        "domains": found.domains,
        "pods": answering_pods(slug, found),
        "pods_total": found.pods_total,
    }
