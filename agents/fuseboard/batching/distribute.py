"""Gives what an answer grants to the callers that still wait, and gives the rest back."""

from asyncio import InvalidStateError

from fuseboard.batching.demand import Demand, is_slot
from fuseboard.batching.redis_question import PROBES, Caller, Domain, Question, RedisAnswer, Reply


def distribute_all(question: Question, reply: Reply) -> None:
    """There was enough for all callers."""
    number = 0
    for (demand, callers), places in zip(question.groups.items(), question.places, strict=True):
        left = demand.left = tuple([reply.figures[place - 1] for place in places])
        yes = RedisAnswer(reply, True, left)
        number = _grant(question, demand, callers, yes, demand.bulk or len(callers), number)


def tally_shadows(question: Question, reply: Reply) -> None:
    """Count the calls that a shadow limit would have refused."""
    over = reply.figures[3 * len(question.groups) + 1 :: 3]
    if not any(over):
        return
    for demand, places in zip(question.groups, question.places, strict=True):
        if demand.only_asks:
            continue  # it has no call of its own, and the calls of others are counted with their demands
        for own, (ref, place) in enumerate(zip(demand.refs, places, strict=True)):
            calls, over[place - 1] = over[place - 1], 0
            if calls and ref.limit.shadow:
                demand.would_refuse(own, calls)


def distribute_scarce(question: Question, reply: Reply, decided: float, *, remember: bool) -> None:
    """Something was scarce: callers are served in order of arrival.

    ``decided`` is when Redis decided, in monotonic seconds: its waits begin there. ``remember`` refusals, so
    that Redis is not asked again before they end.
    """
    number, figures = 0, reply.figures
    left = figures[3 * len(question.groups) :: 3]
    over = figures[3 * len(question.groups) + 1 :: 3]
    over = over if any(over) else []
    for position, (demand, callers) in enumerate(question.groups.items()):
        granted, blocked, wait_us = figures[3 * position : 3 * position + 3]
        places = question.places[position]
        of_these = demand.left = tuple([left[place - 1] for place in places])
        yes = RedisAnswer(reply, True, of_these)
        if over:
            yes.uncounted = [key for key, place in zip(demand.keys, places, strict=True) if over[place - 1]]
        number = _grant(question, demand, callers, yes, granted, number)
        if demand.bulk:
            granted = int(granted > 0)
        if granted < len(callers):
            # The question numbers limits across all its groups: find the limit of this demand.
            place = places.index(blocked) + 1 if blocked in places else blocked
            no = RedisAnswer(reply, False, of_these, place, decided + wait_us / 1_000_000 if wait_us else 0.0)
            if remember and place > 0 and no.retry_at and not demand.bulk and not demand.only_asks:
                _remember(question.domain, demand, no)
            for caller in callers[granted:]:
                if not caller.done():
                    caller.set_result(no)


def _remember(domain: Domain, demand: Demand, no: RedisAnswer) -> None:
    """Now, not when the caller wakes up: the next answer may already change the counter."""
    limit = demand.refs[no.blocked - 1].limit
    if not is_slot(limit):  # a slot may become free at any moment
        reason = domain.reason_of(limit)
        domain.refusals.remember(demand, reason, limit.name, no.retry_at, place=no.blocked)


def _grant(
    question: Question, demand: Demand, callers: list[Caller], yes: RedisAnswer, granted: int, number: int
) -> int:
    """Answer the first ``granted`` callers. Numbers granted calls across all groups, and returns the last
    number.
    """
    domain = question.domain
    if granted and domain.refusals.by_counter:
        domain.refusals.forget_counters(demand.keys)
    if yes.verdict == PROBES or demand.holds_slots:
        tokens = [f"{question.token}.{number + place}" for place in range(1, granted + 1)]
        if demand.bulk:
            # Probes cannot be leased.
            for token in tokens:
                domain.unused(demand, yes.with_token(token))
            if not callers[0].done():
                callers[0].set_result(None)
        else:
            for caller, token in zip(callers, tokens, strict=False):
                _answer(domain, demand, caller, yes.with_token(token))
    elif demand.bulk:
        # All that was granted belongs to the one caller that asked for many.
        yes.calls = granted
        if granted:
            _answer(domain, demand, callers[0], yes)
    else:
        for caller in callers if granted == len(callers) else callers[:granted]:
            try:
                caller.set_result(yes)
            except InvalidStateError:  # cheaper than checking each caller first
                domain.unused(demand, yes)
    return number + granted


def _answer(domain: Domain, demand: Demand, caller: Caller, answer: RedisAnswer) -> None:
    """Answer one caller. When it no longer waits, what was granted goes back."""
    if caller.done():
        domain.unused(demand, answer)
    else:
        caller.set_result(answer)


def give_back(domain: Domain, demand: Demand, caller: Caller) -> None:
    """``caller`` was cancelled: give back what it was granted in that moment."""
    answer = caller.result() if caller.done() and not caller.cancelled() else None
    if answer is not None and answer.granted:
        domain.unused(demand, answer)
