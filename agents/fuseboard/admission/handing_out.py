"""What an answer grants reaches the callers who still wait; the rest goes back to where it came from."""

from fuseboard.admission.demand import Demand
from fuseboard.admission.question import Answer, Caller, Domain, Question


def hand_out(
    domain: Domain,
    demand: Demand,
    callers: list[Caller],
    yes: Answer,
    granted: int,
    tokens: list[str] | None,
) -> None:
    """Tell the first ``granted`` callers; what nobody waits for any more goes back."""
    for place, caller in enumerate(callers[:granted]):
        answer = yes if tokens is None else yes.with_token(tokens[place])
        if caller.done():
            domain.unused(demand, answer)
        else:
            caller.set_result(answer)


def place_of(question: Question, demand: Demand, blocked: int) -> int:
    """Which limit of the demand is meant by a number of the question's."""
    for place, ref in enumerate(demand.refs, start=1):
        if question.numbers[ref.key] == blocked:
            return place
    return blocked


def give_back(domain: Domain, demand: Demand, caller: Caller) -> None:
    """``caller`` was cancelled: if it was granted something in that moment, nobody will use it."""
    answer = caller.result() if caller.done() and not caller.cancelled() else None
    if answer is not None and answer.granted:
        domain.unused(demand, answer)
