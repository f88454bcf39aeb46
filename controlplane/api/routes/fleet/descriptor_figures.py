from datetime import UTC, datetime
from time import time

from django.http import HttpRequest
from ninja import Router, Schema

from controlplane.api.schemas.edits_in import Environment
from controlplane.fleet.descriptor_figures import DomainFigures, asked_lately
from controlplane.policies.document import environment_of

router = Router()


class DescriptorRuleOut(Schema):
    #: The rule with those above it: "tenant > path=/v1/*". Longer than 200 characters, it ends with a digest.
    rule: str
    asked: int
    refused: int
    #: Descriptors that the rule would have refused if it were not in shadow mode.
    shadow: int


class UnmatchedDescriptorsOut(Schema):
    #: The keys, joined like the rules.
    keys: str
    asked: int
    #: Values of at most three descriptors, cut at 40 characters, with {id} for what identifies something.
    examples: list[str]


class DescriptorDomainOut(Schema):
    domain: str
    #: Rules that a descriptor met.
    rules: list[DescriptorRuleOut]
    #: At most 50, the most frequent keys first.
    unmatched: list[UnmatchedDescriptorsOut]
    #: All descriptors that no rule matched.
    unmatched_total: int


class DescriptorFiguresOut(Schema):
    #: From when descriptors are counted: 15 to 18 minutes ago.
    since: datetime
    domains: list[DescriptorDomainOut]


@router.get("", response=DescriptorFiguresOut)
def read_descriptor_figures(request: HttpRequest, environment: Environment) -> DescriptorFiguresOut:
    """Descriptors that Envoy asked for in the last 15 minutes, by rule, over all pods."""
    found = asked_lately(environment_of(environment).slug, time())
    since = datetime.fromtimestamp(found.since, UTC)
    return DescriptorFiguresOut(since=since, domains=[_domain(domain) for domain in found.domains])


def _domain(found: DomainFigures) -> DescriptorDomainOut:
    return DescriptorDomainOut(
        domain=found.domain,
        rules=[
            DescriptorRuleOut(rule=rule, asked=one.asked, refused=one.refused, shadow=one.shadow)
            for rule, one in found.rules.items()
        ],
        unmatched=[
            UnmatchedDescriptorsOut(keys=one.keys, asked=one.asked, examples=list(one.examples))
            for one in found.unmatched
        ],
        unmatched_total=found.unmatched_total,
    )
