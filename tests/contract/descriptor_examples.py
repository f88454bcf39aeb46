"""The example of a policy with rules for descriptors."""

from fuseboard.contract.descriptors import Charge, DescriptorDomain, DescriptorRule, Headers, Means
from fuseboard.contract.limits import Limit
from fuseboard.contract.policy import Dependency, Policy, Tier
from fuseboard.contract.words import Algorithm, Period
from tests.contract.priced_examples import PRICED_POLICY

#: Two domains. The rules have every field, each in a place where it may be.
DESCRIBED_POLICY = Policy(
    environment="production",
    default_tier="free",
    tiers=(Tier(name="free"),),
    dependencies=(Dependency(name="payments-api"),),
    descriptors=(
        DescriptorDomain(
            domain="edge",
            rules=(
                DescriptorRule(
                    key="tenant",
                    means=Means.TENANT,
                    measure="tokens",
                    charge=Charge.AFTER,
                    then=(DescriptorRule(key="remote_address", means=Means.IP),),
                ),
                DescriptorRule(
                    key="destination_cluster",
                    value="outbound|443||api.example.com",
                    dependency="payments-api",
                ),
                DescriptorRule(
                    key="path",
                    value="/reports/*",
                    share=True,
                    name="reports",
                    replaces=("slow",),
                    accepts_override=500,
                    limit=Limit(
                        name="reports",
                        limit=100,
                        window_ms=86_400_000,
                        algorithm=Algorithm.FIXED_WINDOW,
                        period=Period.DAY,
                    ),
                ),
                DescriptorRule(key="health", unlimited=True),
            ),
        ),
        DescriptorDomain(domain="mesh of eu-west", headers=Headers.LEGACY),
    ),
)

#: Golden file -> the policy of one later field.
NAMED_POLICIES = {"policy.models.json": PRICED_POLICY, "policy.descriptors.json": DESCRIBED_POLICY}
