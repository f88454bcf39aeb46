"""The policy document, as an agent reads it."""

from controlplane.policies.document import environment_of, policy_of
from fuseboard.contract.policy import Policy, decode_policy, encode_policy


def published_policy(environment: str = "production") -> Policy:
    return decode_policy(encode_policy(policy_of(environment_of(environment))))
