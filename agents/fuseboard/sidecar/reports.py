"""Judges what an application reports, as the transports of this package judge an answer or an exception."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Iterable, Mapping
from http.client import BadStatusLine

from msgspec import Raw
from msgspec.json import Decoder

from fuseboard.agent import Agent
from fuseboard.contract.sidecar import (
    MAX_ELAPSED_MS,
    MAX_TEXT,
    REPORTS_PATH,
    CallError,
    InvalidReport,
    Report,
)
from fuseboard.contract.words import Outcome
from fuseboard.decision import Permit
from fuseboard.integrations.guarded_request import report_answer
from fuseboard.sidecar.bodies import UNREADABLE
from fuseboard.sidecar.peers import Peers
from fuseboard.sidecar.permits import Kept

logger = logging.getLogger("fuseboard.sidecar")

#: A call may have cost this many times its estimate, and this much in any case.
MAX_TIMES_ESTIMATE, MAX_UNESTIMATED = 100, 1_000_000

#: The exceptions that a client in Python raises.
_ERRORS: dict[CallError, Callable[[], BaseException]] = {
    CallError.TIMEOUT: TimeoutError,
    CallError.CONNECT: ConnectionRefusedError,
    CallError.RESET: ConnectionResetError,
    CallError.TLS: ssl.SSLCertVerificationError,
    CallError.DNS: lambda: socket.gaierror(socket.EAI_AGAIN, "the resolver did not answer"),
    CallError.PROTOCOL: lambda: BadStatusLine(""),
    CallError.CANCELLED: asyncio.CancelledError,
}

_decode = Decoder(Report).decode


class Reports:
    def __init__(self, agent: Agent, permits: Kept[Permit], peers: Peers | None = None) -> None:
        self._agent, self._permits, self._peers = agent, permits, peers
        #: Reports of permits that had ended, those that could not be read, and amounts that were cut to what
        #: a call can have cost.
        self.unknown = self.invalid = self.cut = 0

    def take(self, reports: Iterable[Report]) -> tuple[int, tuple[str, ...]]:
        """How many counted, and the permits that had ended already."""
        accepted, unknown = 0, []
        for report in reports:
            permit = self._permits.take(report.permit)
            if permit is None and self._hands_on(report):
                accepted += 1
            elif permit is None:
                unknown.append(report.permit)
            else:
                accepted += 1
                try:
                    self._report(permit, report)
                except Exception:
                    logger.exception("sidecar.defect: a report counts as neutral")
                    self._agent.report(permit, Outcome.NEUTRAL)
        self.unknown += len(unknown)
        return accepted, tuple(unknown)

    def _hands_on(self, report: Report) -> bool:
        """Whether another worker has the permit, and gets the report."""
        return self._peers is not None and self._peers.hand_on(report.permit, REPORTS_PATH, report)

    def read(self, raw: Iterable[Raw]) -> tuple[tuple[Report, ...], tuple[InvalidReport, ...]]:
        """The reports, and those that cannot be read: one odd answer of a vendor costs no other report."""
        reports, invalid = [], []
        for place, one in enumerate(raw):
            try:
                reports.append(_decode(one))
            except UNREADABLE as error:
                invalid.append(InvalidReport(place=place, detail=str(error)))
        self.invalid += len(invalid)
        return tuple(reports), tuple(invalid)

    def _report(self, permit: Permit, report: Report) -> None:
        agent = self._agent
        if report.settle:
            permit.settle_all(self.bounded(report.settle, permit.cost()))
        elapsed_s = None
        if report.elapsed_ms is not None:
            elapsed_s = min(max(report.elapsed_ms, 0.0), MAX_ELAPSED_MS) / 1000
        if permit.parts is not None:
            permit.first_part_s = elapsed_s
        if report.status is not None:
            retry_after, code = report.retry_after[:MAX_TEXT], report.code[:MAX_TEXT]
            report_answer(
                agent, permit, report.status, retry_after=retry_after, code=code, elapsed_s=elapsed_s
            )
        elif report.outcome is not None:
            agent.report(permit, report.outcome, elapsed_s)
        elif report.error is None or report.error is CallError.LOCAL:
            agent.report(permit, Outcome.NEUTRAL)
        else:
            agent.report_error(permit, _ERRORS[report.error]())

    def bounded(self, settle: Mapping[str, int], estimates: Mapping[str, int]) -> dict[str, int]:
        """The amounts, cut to what a call with these estimates can have cost."""
        amounts = {}
        for measure, amount in settle.items():
            most = max(MAX_TIMES_ESTIMATE * estimates.get(measure, 0), MAX_UNESTIMATED)
            self.cut += amount > most
            amounts[measure] = min(amount, most)
        return amounts
