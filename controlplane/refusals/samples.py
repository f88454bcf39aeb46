"""A sample of the log as a token, so that both are explained by the same words."""

from controlplane.refusals.keys import day_at, key_of
from controlplane.refusals.models import RefusalSample
from fuseboard.contract.refusal_token import Refused, make_token
from fuseboard.contract.words import Mode, Reason


def token_of(sample: RefusalSample) -> str:
    """The token that the pod could have sent with this refusal. Only for people who may see the sample."""
    at = sample.at.timestamp()
    refused = Refused(
        at_ms=int(at * 1000),
        number=sample.pk % 2**24,
        revision=sample.revision,
        # A sample can be of a newer release, with words that this one does not know.
        reason=next((reason for reason in Reason if reason == sample.reason), None),
        mode=next((mode for mode in Mode if mode == sample.mode), Mode.SHARED),
        rule=sample.rule,
        dependency=sample.dependency,
        tenant=sample.tenant,
        server=sample.server,
        retry_after_ms=sample.retry_after_ms,
    )
    return make_token(key_of(sample.environment, sample.service, day_at(at)), refused)
