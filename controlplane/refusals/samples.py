"""Samples of the log: as a token, so that both are explained by the same words, and as a file."""

import csv
from collections.abc import Iterable
from io import StringIO

from controlplane.audit.export import harmless_cell
from controlplane.refusals.keys import day_at, key_of
from controlplane.refusals.models import RefusalSample
from fuseboard.contract.refusal_token import TokenContent, make_token
from fuseboard.contract.words import Mode, Reason

#: The columns of a file: who asked is not among them, not even as a digest.
_COLUMNS = (
    *("at", "service", "server", "dependency", "rule", "reason", "mode", "tenant", "endpoint"),
    *("revision", "retry_after_ms", "trace", "weight"),
)
#: Samples in one file.
IN_FILE = 10_000


def samples_as_csv(samples: Iterable[RefusalSample]) -> str:
    """At most ``IN_FILE`` samples; a last line says if more were found."""
    text = StringIO()
    writer = csv.writer(text)
    writer.writerow(_COLUMNS)
    for number, row in enumerate(samples):
        if number == IN_FILE:
            writer.writerow([f"cut: only the newest {IN_FILE} samples"])
            break
        cells = [row.at.isoformat(), *(getattr(row, column) for column in _COLUMNS[1:])]
        writer.writerow([harmless_cell(cell) for cell in cells])
    return text.getvalue()


def token_of(sample: RefusalSample) -> str:
    """The token that the pod could have sent with this refusal. Only for people who may see the sample."""
    at = sample.at.timestamp()
    refused = TokenContent(
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
