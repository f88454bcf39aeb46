"""The agent that an application uses on an event loop."""

from collections.abc import Coroutine, Mapping
from functools import partial
from time import monotonic, time
from typing import Any, NoReturn, Unpack

from msgspec.structs import replace

from fuseboard.admission.admission import ONE
from fuseboard.agent_api.arguments import (
    INVALID,
    MAX_ACTUAL,
    check_actual,
    check_call_values,
    check_costs,
    check_deadline,
    check_name,
    check_wait,
    harmless,
    usage_of,
)
from fuseboard.agent_api.asks import Asks
from fuseboard.agent_api.context_managers import ContextManagers
from fuseboard.agent_api.deprecation import warn_renamed
from fuseboard.agent_api.ledger_entries import ledger_entry
from fuseboard.agent_api.options import Neutral, RequestOptions, list_options
from fuseboard.backlog.agent_backlogs import BacklogAgent, Backlogs
from fuseboard.calling import deadline as deadlines
from fuseboard.calling.current_chain import current_chain
from fuseboard.calling.failures import note_failure
from fuseboard.calling.observer import Observer
from fuseboard.calling.outcomes import judge_permitted
from fuseboard.contract.failures import SLOW_KIND, UNKNOWN_KIND
from fuseboard.contract.models import price_at
from fuseboard.contract.policy import BreakerPolicy
from fuseboard.contract.timeouts import timeout_ms_of
from fuseboard.contract.words import Mode, Outcome, Reason, is_subject
from fuseboard.decision import Amounts, Decision, Parts, Permit
from fuseboard.errors import Misconfigured, Refused
from fuseboard.primitives.api import AsyncPrimitives
from fuseboard.primitives.store_thread import StoreThread
from fuseboard.reporting.counters import MAX_DEPENDENCIES
from fuseboard.runtime import Runtime
from fuseboard.settings import AgentSettings
from fuseboard.store.drill_store import SIMULATED
from fuseboard.subject import NO_SUBJECT, Subject

INVALID_TENANT = INVALID

# Members of enumerations are slow to look up in Python 3.11.
FAILURE, SLOW = Outcome.FAILURE, Outcome.SLOW

_DEFAULT_BREAKER = BreakerPolicy()


class Agent(Asks, ContextManagers, BacklogAgent, AsyncPrimitives):
    """Decides every call of a pod, with Redis or without.

    Belongs to the event loop it was started on; ``fuseboard.blocking.Agent`` is for code without one.
    Raises ``Refused`` where documented, and ``Misconfigured`` for wrong use. Raises nothing else,
    whatever breaks.
    """

    def __init__(self, *, settings: AgentSettings) -> None:
        super().__init__(settings=settings)
        self._names: set[str] = set()
        self._store_thread = StoreThread(settings.redis_url, self._simulated_outage)
        AsyncPrimitives.__init__(
            self,
            self._store_thread,
            settings.environment,
            lambda: self._runtime.primitives,
            lambda: self._runtime.seals,
        )
        self.backlogs = Backlogs(self, self._store_thread, settings.environment, self._present_runtime)

    async def stop(self) -> None:
        """Send what is not reported yet and sign off; at most half a second. Locks end by themselves."""
        if self.running:
            await self.backlogs.stop()
            await super().stop()
            await self._store_thread.stop()

    # Requests that enter a service

    async def admit_request(
        self,
        tenant: str | None,
        cost: int = 1,
        *,
        costs: Mapping[str, int] | None = None,
        subject: Subject = NO_SUBJECT,
        wait_s: float | None = None,
    ) -> Decision:
        """Decide one request of a tenant that costs ``cost`` of its quotas. Call ``finish`` when it ends.

        ``costs`` are estimates of its other costs, by measure; ``settle`` corrects them. ``subject``
        says who asks, below the tenant. A tenant of ``None`` is a caller that belongs to no tenant: the
        limits of its address or key decide. If a request would be refused, it waits, provided that the
        refusal ends within ``wait_s`` seconds; ``None`` is what the tenant's tier says.

        Never raises because of a store or the control plane. Raises ``Misconfigured`` for invalid
        arguments.
        """
        runtime = self._runtime
        plain = cost is ONE and costs is None and subject is NO_SUBJECT and wait_s is None
        if plain and type(tenant) is str and runtime.observer is None and self._here():
            # Most requests of a busy tenant. Only valid names have a lease, so nothing else need be checked.
            try:
                leased = runtime.admission.spend_by_name(tenant)
            except Exception as error:
                return self._not_decided(error, tenant)
            if leased is not None:
                return leased
        if wait_s is not None:
            check_wait(wait_s)
        if tenant is not None and costs is None and subject is NO_SUBJECT:
            tenant = self._known(tenant)
        else:
            tenant, subject = self._checked(tenant, costs, subject)
        self._check_loop()
        if self._stopped:
            return self.allow_unasked(tenant=tenant or "")
        observer = runtime.observer
        begun = 0.0 if observer is None else monotonic()
        try:
            decision = await runtime.admission.admit_request(
                tenant or "", cost, costs=costs, subject=subject, wait_s=wait_s
            )
        except Exception as error:
            return self._not_decided(error, tenant or "")
        if not decision.allowed:
            runtime.refusal_samples.offer(decision, subject)
        if observer is not None:
            self._safely(partial(observer.decided, decision, monotonic() - begun))
        return decision

    def _not_decided(self, error: Exception, tenant: str) -> Decision:
        """Raise wrong use again. Any other error is a defect, which fails no request."""
        if isinstance(error, Misconfigured):
            raise error
        self._note_defect()
        return self.allow_unasked(tenant=tenant)

    def _checked(
        self, tenant: str | None, costs: Mapping[str, int] | None, subject: Subject
    ) -> tuple[str | None, Subject]:
        """Tenant and subject with values that can be counted. Raises ``Misconfigured``."""
        if costs is not None:
            check_costs(costs)
        if subject is not NO_SUBJECT:
            subject = harmless(subject, self.configuration.snapshot.tuning.ipv6_prefix)
        if tenant is not None:
            return self._known(tenant), subject
        if subject == NO_SUBJECT:
            raise Misconfigured("a caller without a tenant is decided by its address or key: pass a subject")
        return None, subject

    @list_options()
    def check(
        self, tenant: str | None, cost: int = 1, **options: Unpack[RequestOptions]
    ) -> Coroutine[Any, Any, Decision]:
        """Deprecated: the name of ``admit_request`` in release 0.1."""
        warn_renamed("Agent.check", "Agent.admit_request")
        return self.admit_request(tenant, cost, **options)

    # Calls that leave a service

    async def admit_call(
        self,
        dependency: str,
        *,
        tenant: str = "",
        cost: int = 1,
        costs: Mapping[str, int] | None = None,
        spend_quota: bool = False,
        spend_costs: bool = False,
        wait_s: float | None = None,
        tier: str | None = None,
        deadline_s: float | None = None,
    ) -> Permit:
        """Get a permit for one call; ``report`` its outcome. Raises ``Refused``.

        With a ``tenant``, its quotas on the dependency apply too. ``spend_quota`` also spends the
        tenant's quotas on requests: for work that no request started. ``spend_costs`` also spends those of
        them that count other costs than calls, such as tokens: the request has paid for itself. ``wait_s``
        is as in ``admit_request``; ``None`` is what the dependency says. ``tier`` is critical, standard or
        optional, and matters if the dependency has a bulkhead; ``None`` is what the dependency says.
        ``deadline_s``: within which time the call must have ended. Like ``fuseboard.deadline``, it bounds
        every wait, and the permit's timeout.
        """
        if dependency not in self._names:
            self._learn_name(dependency)
        if costs is not None or wait_s is not None or tier is not None:
            check_call_values(costs, wait_s, tier)
        until = deadlines.until() if deadline_s is None else _earlier(deadline_s)
        tenant = self._known(tenant) if tenant else ""
        self._check_loop()
        if self._stopped:
            return self.permit_unasked(dependency)
        if until is not None and until <= monotonic():
            # A call with no time left would end as a failure of the dependency.
            self._refuse_late(dependency)
        observer = self._runtime.observer
        begun = 0.0 if observer is None else monotonic()
        try:
            permit = await self._runtime.admission.admit_call(
                dependency, tenant, cost, costs, spend_quota, spend_costs, wait_s, tier, until=until
            )
        except Exception as error:
            return self._not_permitted(error, dependency, tenant, observer, begun)
        if observer is not None:
            self._safely(partial(observer.permitted, permit, begun, monotonic() - begun))
        self._bound(permit, tier)
        if until is not None:
            self._hurry(permit, until)
        if (chain := current_chain()) is not None:
            chain.append(permit)
        return permit

    def _not_permitted(
        self, error: Exception, dependency: str, tenant: str, observer: Observer | None, begun: float
    ) -> Permit:
        """Raise a refusal or wrong use again. Any other error is a defect, which fails no call."""
        if isinstance(error, Misconfigured):
            raise error
        if not isinstance(error, Refused):
            self._note_defect()
            return self.permit_unasked(dependency)
        self._runtime.refusal_samples.offer(error.decision, tenant=tenant)
        if observer is not None:
            self._safely(partial(observer.decided, error.decision, monotonic() - begun))
        raise error

    def _bound(self, permit: Permit, tier: str | None) -> None:
        """How long the call may take, and the parts of a stream."""
        permit.settler = self.settle
        known = self.configuration.snapshot.dependency(permit.dependency)
        if known is not None:
            permit.tier = tier
            permit.timeout_s = timeout_ms_of(known, tier) / 1000
            if known.first_part_ms or known.between_parts_ms:
                permit.began_s = monotonic()
                permit.parts = Parts(known.first_part_ms / 1000, known.between_parts_ms / 1000)

    def _hurry(self, permit: Permit, until: float) -> None:
        """The caller's deadline bounds the call, too."""
        left_s = until - monotonic()
        if left_s <= 0:
            # The wait for Redis can be longer than the caller's deadline.
            self.give_back(permit)
            self._refuse_late(permit.dependency)
        permit.timeout_s = left_s if permit.timeout_s is None else min(permit.timeout_s, left_s)
        permit.until = until
        permit.hurried = not self._is_slow(permit, left_s)

    def report(
        self, permit: Permit, outcome: Outcome, elapsed_s: float | None = None, *, cooldown_ms: int = 0
    ) -> None:
        """Report how a permitted call ended, once. Further reports of the same permit count nothing.

        With ``elapsed_s``, a success that took longer than the breaker's ``slow_ms``, or than the call's
        timeout, counts as slow. The time of a stream is that until its first part. ``cooldown_ms``: for how
        long the vendor asked not to be called; the whole fleet stops calling it.
        """
        if permit.counted is not None:
            self._settle_counted(permit, permit.counted)
        if outcome is Outcome.OK and elapsed_s is not None and self._is_slow(permit, elapsed_s):
            outcome = SLOW
        if permit.failure is None and (outcome is FAILURE or outcome is SLOW):
            note_failure(permit, UNKNOWN_KIND if outcome is FAILURE else SLOW_KIND)
        if (observer := self._runtime.observer) is not None:
            self._safely(lambda: observer.reported(permit, outcome, elapsed_s))
        self._run_on_loop(lambda: self._runtime.admission.report(permit, outcome, cooldown_ms, elapsed_s))

    def report_error(self, permit: Permit, error: BaseException, neutral: Neutral = ()) -> None:
        """Report a call that ended with ``error``, judged by ``fuseboard.calling.outcomes``."""
        outcome, cooldown_ms = judge_permitted(permit, error, neutral)
        self.report(permit, outcome, cooldown_ms=cooldown_ms)

    # Charges

    def _settle_counted(self, permit: Permit, counted: Mapping[str, int]) -> None:
        permit.counted = None
        for measure, amount in counted.items():
            permit.settle(measure, min(amount, MAX_ACTUAL))

    def settle(self, decision: Decision, measure: str, actual: int) -> None:
        """The call cost ``actual`` of ``measure``: correct the estimate it was admitted with, once.

        Only this agent can correct its decisions. What was given back, or has left the window of a limit,
        is not given back again. Raises ``Misconfigured`` unless ``actual`` is a whole number of at least 0.
        """
        check_actual(measure, actual)
        self._run_on_loop(lambda: self._runtime.admission.settle(decision, measure, actual))

    def note_left(self, permit: Permit, stated: Mapping[str, tuple[int, int]], believed_s: float) -> None:
        """The vendor states what is left of its limits, and their numbers, by name. Guarded clients call it.

        The answer is that of the call with this permit. It is used within ``believed_s``.
        """
        until = monotonic() + believed_s
        self._run_on_loop(lambda: self._runtime.admission.outcomes.note_left(permit, stated, until))

    def charge(
        self,
        name: str,
        usage: Amounts | Mapping[str, int],
        *,
        tenant: str = "",
        batch: bool = False,
        as_dependency: bool = False,
    ) -> None:
        """Charge what was used without a permit, by measure, in the unit of each: tokens, or ``micro_usd``.

        ``name`` is that of a dependency, or of a model: then its pool counts the usage, and its present price
        makes the money of a ``fuseboard.llm.Usage``. A mapping names the money itself. If a model and a
        dependency have this name, it is the model, unless ``as_dependency`` is true. All limits and budgets
        of the dependency, its account and ``tenant`` count the amounts from now on, and no call. *Costs* has
        them too. Nothing is refused, and nothing waits; without Redis, the pod charges its shares. ``batch``:
        the work of a batch, at its price. Vendors limit the rate of batches apart, so of the limits of the
        dependency only budgets count it.

        Charge each batch once, when you download it. From any thread. Raises ``Misconfigured`` unless each
        amount is a whole number of at least 0.
        """
        model = None if as_dependency else self.configuration.snapshot.model(name)
        dependency = model.pool if model is not None and model.pool else name
        if dependency not in self._names:
            self._learn_name(dependency)
        tenant = self._known(tenant) if tenant else ""
        price = price_at(model, time()) if model is not None else None
        amounts = usage_of(usage, price, batch=batch)
        costs = tuple(sorted((measure, amount) for measure, amount in amounts.items() if amount))
        if (used := ledger_entry(amounts, price, calls=getattr(usage, "calls", 1), batch=batch)) is not None:
            known = as_dependency or self.configuration.snapshot.dependency(name) is not None
            called = model.name if model is not None else "" if known else name
            self.counters.usage.add(called, dependency, tenant, used)
        if costs:
            charging = self._runtime.admission.charging
            self._run_on_loop(lambda: charging.charge(dependency, costs, tenant, batch=batch))

    def charge_again(self, permit: Permit, times: int) -> None:
        """Charge the call of this permit ``times`` more: a proxy has repeated it without a permit.

        All limits that count its calls are charged, also past the limit: later calls are refused. Other costs
        are not charged again, and no slots are taken. Without Redis, the pod charges its shares.

        From any thread. Raises ``Misconfigured`` unless ``times`` is a whole number of at least 0.
        """
        check_actual("repetitions", times)
        if times:
            charging = self._runtime.admission.charging
            self._run_on_loop(lambda: charging.charge_again(permit, times))

    def finish(self, decision: Decision) -> None:
        """The request has ended: free its slots, once. Its other costs stay spent."""
        if decision.holds_slots():
            self._run_on_loop(lambda: self._runtime.admission.finish(decision))

    def give_back(self, taken: Decision | Permit) -> None:
        """The request was not served, or the call was not made: refund what it spent."""
        if isinstance(taken, Permit):
            decision, taken.given_back = taken.decision, True
            if taken.slot is not None:
                permit = taken
                self._run_on_loop(lambda: self._runtime.admission.undo(permit))
            self.report(taken, Outcome.NEUTRAL)  # frees its probe permit and its slots, here and in Redis
        else:
            decision = taken
        if decision.charges:
            self._run_on_loop(lambda: self._runtime.admission.give_back(decision))

    # Locks and blocks that run once: one pod cannot decide them alone

    def _present_runtime(self) -> Runtime:
        self._check_loop()
        if self._stopped:
            raise Misconfigured("the agent is stopped: start it before you use a backlog")
        return self._runtime

    def _simulated_outage(self) -> str:
        drill = self._runtime.admission.store.drill
        return f"a drill: it is simulated as {SIMULATED[drill.kind]}" if drill is not None else ""

    # Helpers of the other parts of the surface

    def allow_unasked(self, *, tenant: str = "", dependency: str = "") -> Decision:
        """The decision when the agent itself cannot decide: the agent never fails a call."""
        return Decision(
            allowed=True,
            tenant=tenant,
            dependency=dependency,
            revision=self.configuration.snapshot.head.revision,
            mode=Mode.LOCAL,
            server=self.settings.server,
        )

    def permit_unasked(self, dependency: str) -> Permit:
        decision = self.allow_unasked(dependency=dependency)
        permit = Permit(made=decision, dependency=dependency, generation=0, reported=True)
        self._bound(permit, None)
        return permit

    def permit_late(self, dependency: str) -> Permit:
        """The permit of a call that the loop did not decide in time. Raises ``Refused`` with a bulkhead.

        Such a call may still wait for a slot. If lateness admitted it, nothing would bound the calls.
        """
        if not self.running or self.queue_timeout_s(dependency) is None:
            return self.permit_unasked(dependency)
        self._refuse_late(dependency)

    def _refuse_late(self, dependency: str) -> NoReturn:
        self.soon(lambda: self.counters.call_refused(dependency, Reason.QUEUE_TIMEOUT))
        decision = replace(
            self.allow_unasked(dependency=dependency),
            allowed=False,
            reason=Reason.QUEUE_TIMEOUT,
            retry_after_ms=1000,
            rule=dependency,
            signer=self._runtime.refusal_tokens,
        )
        self._runtime.refusal_samples.offer(decision)
        if (observer := self._runtime.observer) is not None:
            self._safely(lambda: observer.refused_unasked(decision))
        raise Refused(decision)

    def _known(self, tenant: str) -> str:
        if not isinstance(tenant, str):
            raise Misconfigured(f"tenant must be text, not {type(tenant).__name__}")
        if tenant not in self._runtime.configuration.snapshot.tenants and not is_subject(tenant):
            return INVALID_TENANT
        return tenant

    def _learn_name(self, dependency: str) -> None:
        check_name("a dependency", dependency)
        is_registered = self.configuration.snapshot.dependency(dependency) is not None
        if len(self._names) >= MAX_DEPENDENCIES and not is_registered:
            raise Misconfigured(f"more than {MAX_DEPENDENCIES} dependencies: is a name made from a request?")
        self._names.add(dependency)

    def _is_slow(self, permit: Permit, elapsed_s: float) -> bool:
        known = self.configuration.snapshot.dependency(permit.dependency)
        if known is None:
            return elapsed_s * 1000 > _DEFAULT_BREAKER.slow_ms
        most_ms = timeout_ms_of(known, permit.tier)
        if permit.first_part_s is not None:
            elapsed_s, most_ms = permit.first_part_s, known.first_part_ms or most_ms
        # A call that blocks cannot be cancelled: beyond its timeout, even a success is slow.
        return elapsed_s * 1000 > min(known.breaker.slow_ms, most_ms)


def from_env() -> Agent:
    """An agent with the settings of the environment (``FUSEBOARD_*``). Raises ``Misconfigured``."""
    return Agent(settings=AgentSettings.from_env())


def _earlier(deadline_s: float) -> float:
    """The deadline of a call, or that of ``fuseboard.deadline`` around it if that is earlier."""
    check_deadline(deadline_s)
    own, outer = monotonic() + deadline_s, deadlines.until()
    return own if outer is None else min(own, outer)
