"""Envoy's rate limit service: a plain function over the bytes of its messages.

Servers of gRPC and of HTTP/1.1 call it. It belongs to the loop of the agent.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from fuseboard.agent import Agent
from fuseboard.decision import Decision, Permit
from fuseboard.envoy import answers
from fuseboard.envoy.asks import MAX_REMEMBERED, Asked, InvalidMessage, Questions
from fuseboard.errors import Refused

logger = logging.getLogger("fuseboard.envoy")

#: The method of gRPC, and the path of its requests.
SHOULD_RATE_LIMIT = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"


class Answered(NamedTuple):
    """An answer, and what takes back what it granted, if the peer left before it could be sent."""

    body: bytes
    unsent: Callable[[], None] | None = None


class Taken:
    """The decisions and permits that one request got from the agent."""

    def __init__(self) -> None:
        #: By the places of descriptors.
        self.parts: dict[int, Decision] = {}
        self.permits: list[Permit] = []
        #: The ids of the permits, once they have some.
        self.names: list[str] = []
        self.together: Decision | None = None
        #: The decisions about limits of callers: not those of vendors.
        self.decisions: list[Decision] = []


class RateLimitService:
    """``keep`` gives a permit an id, by which ``take`` finds it once: Envoy's access log names it."""

    def __init__(
        self, agent: Agent, *, keep: Callable[[Permit], str], take: Callable[[str], Permit | None]
    ) -> None:
        self._agent, self._keep, self._take = agent, keep, take
        settings = agent.settings
        self._questions = Questions(settings.environment, min(MAX_REMEMBERED, settings.most_subjects))
        #: Requests that were allowed and refused, those that could not be read, and those that a defect
        #: allowed.
        self.allowed = self.refused = self.invalid = self.defects = 0
        #: Descriptors that no rule decides, and those that would have given hits back.
        self.unmatched = self.negative = 0

    async def answer(self, body: bytes) -> Answered:
        """Answer the bytes of a ``RateLimitRequest`` with those of a ``RateLimitResponse``.

        Raises ``InvalidMessage``, and nothing else: a defect allows the request.
        """
        try:
            asked = self._questions.read(self._agent.configuration.snapshot.descriptor_rules, body)
        except InvalidMessage:
            self.invalid += 1
            raise
        except Exception:
            return self._allow_unread()
        self.unmatched += asked.unmatched
        self.negative += asked.negative
        taken = Taken()
        try:
            refusal = await self._decide(asked, taken) if asked.decides else None
            self._note(asked, taken)
            if refusal is not None:
                self._give_back(taken)
                answer = Answered(answers.refused(asked, taken.parts, refusal))
                self.refused += 1
            else:
                answer = self._allow(asked, taken)
                self.allowed += 1
        except Exception:
            self._give_back(taken)
            return self._allow_unread()
        except BaseException:  # the peer has left
            self._give_back(taken)
            raise
        return answer

    def _allow_unread(self) -> Answered:
        logger.exception("envoy.defect: the request is allowed, and not counted")
        self.defects += 1
        return Answered(answers.ALLOWED)

    async def _decide(self, asked: Asked, taken: Taken) -> Decision | None:
        """The refusal, or ``None``. A check comes first, because it spends nothing."""
        agent = self._agent
        if asked.checks:
            checked = await agent.check_together(asked.checks)
            taken.decisions.append(checked)
            taken.parts.update(zip(asked.check_places, checked.parts, strict=True))
            if not checked.allowed:
                return checked
        for place, call in asked.calls:
            try:
                # Envoy does not wait for long: it takes no answer for an allowance.
                permit = await agent.admit_call(
                    call.dependency,
                    tenant=call.tenant,
                    cost=call.cost,
                    costs=call.costs,
                    # With charge: after, they also spend the quotas of the tenant.
                    spend_costs=True,
                    wait_s=0,
                )
            except Refused as refused:
                taken.parts[place] = refused.decision
                return refused.decision
            taken.permits.append(permit)
        if asked.asks:
            together = taken.together = await agent.admit_together(asked.asks)
            taken.decisions.append(together)
            taken.parts.update(zip(asked.ask_places, together.parts, strict=True))
            if not together.allowed:
                return together
        return None

    def _allow(self, asked: Asked, taken: Taken) -> Answered:
        agent, together = self._agent, taken.together
        taken.names = [self._keep(permit) for permit in taken.permits]
        body = answers.allowed(asked, taken.parts, taken.names, taken.decisions)
        if together is not None and together.holds_slots():
            # Envoy does not say when a request ends, so its slots are free at once.
            agent.finish(together)
        if asked.after:
            agent.charge_after(asked.after)
        for call in asked.used:
            agent.charge(call.dependency, call.costs or {}, tenant=call.tenant, as_dependency=True)

        return Answered(body, partial(self._give_back, taken))

    def _note(self, asked: Asked, taken: Taken) -> None:
        """Count the descriptors for the page of the control plane."""
        parts, refused, shadow = taken.parts, asked.nowhere, asked.nowhere
        if asked.shadows and taken.together is not None:
            charges = taken.together.charges
            uncounted = {key for charge in charges for key in charge.account.uncounted}
            shadow = [asked.shadows.get(place) in uncounted for place in range(len(asked.matches))]
        if not all(part.allowed for part in parts.values()):
            refused = [place in parts and not parts[place].allowed for place in range(len(asked.matches))]
        tallies = self._agent.sidecar_figures.descriptors
        tallies.note(asked.domain, asked.descriptors, asked.matches, refused, shadow)

    def _give_back(self, taken: Taken) -> None:
        # A permit that was reported is not found any more.
        permits = [self._take(name) for name in taken.names] if taken.names else taken.permits
        for permit in permits:
            if permit is not None:
                self._agent.give_back(permit)
        if taken.together is not None and taken.together.allowed:
            self._agent.give_back(taken.together)
