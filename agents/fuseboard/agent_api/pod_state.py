"""How busy the pod is, whether it is ready, and which of its requests are shed."""

from functools import partial
from typing import Any

from fuseboard.agent_api.arguments import INVALID, harmless
from fuseboard.agent_api.lifetime import Lifetime
from fuseboard.contract.sync import BreakerView
from fuseboard.contract.words import is_subject
from fuseboard.decision import Decision
from fuseboard.errors import Misconfigured
from fuseboard.protection.pod import ServedRequest
from fuseboard.protection.pressure import Pressure
from fuseboard.reporting.heartbeat import agent_version
from fuseboard.subject import NO_SUBJECT, Subject

_NO_PRESSURE = Pressure()


def _figures(view: BreakerView) -> dict[str, int | bool]:
    """The outcomes of the fleet in the window of a breaker, and how long until an open one may probe."""
    return {
        "calls": view.window_calls,
        "failures": view.window_failures,
        "consecutive_failures": view.consecutive_failures,
        "for_ms": view.for_ms,
        "remaining_ms": view.remaining_ms,
        "local": view.local,
    }


class PodState(Lifetime):
    """Unlike the rest of an agent, every method here is for any thread, and none waits."""

    def pressure(self) -> Pressure:
        """How much the pod is overloaded, from 0 to 1, and why: ``agent.pressure().explain()``.

        Always 0 while the environment has no protection of pods, because then nothing is measured.
        """
        pod = self._runtime.inbound.pod
        return pod.pressure if pod is not None else _NO_PRESSURE

    def ready(self) -> bool:
        """Whether the pod should get new requests: the answer to a readiness probe.

        ``False`` before the start and from the stop on, and under lasting pressure if a gateway agrees.
        Shared trouble, like an open breaker or a lost Redis, never makes a pod unready: all pods would be.
        """
        return self.readiness()[0]

    def readiness(self) -> tuple[bool, str]:
        """``ready`` and the reason, in words; empty when nothing is unusual."""
        if not self.running:
            return False, "the agent is stopping" if self._stopped else "the agent is not started"
        pod = self._runtime.inbound.pod
        if pod is None:
            return True, ""
        state = pod.ready()
        return state.ready, state.why

    def resilience(self) -> dict[str, Any]:
        """The protection of the pod and its state, as JSON. Without tenants and without secrets."""
        ready, why = self.readiness()
        runtime, views = self._runtime, self.views()
        return {
            "server": self.settings.server,
            "service": self.settings.service,
            "environment": self.settings.environment,
            "revision": runtime.configuration.snapshot.head.revision,
            "mode": str(self.mode),
            "ready": ready,
            "not_ready_because": why if not ready else "",
            **({"unused_retries": unused} if (unused := runtime.retries.unused()) else {}),
            "breakers": {view.dependency: str(view.state) for view in views},
            "breaker_figures": {view.dependency: _figures(view) for view in views},
            **runtime.inbound.describe(),
            **runtime.primitives.describe(),
        }

    def metrics_text(self) -> str:
        """The figures of this agent since its start, in the text format of Prometheus. Without tenants.

        Of this process only: each series has the label ``server``, the name in the heartbeats.
        """
        # Only here: an agent that exports nothing loads nothing of it.
        from fuseboard.telemetry.prometheus_text import Pod, prometheus_text

        runtime, settings = self._runtime, self.settings
        return prometheus_text(
            runtime.counters,
            runtime.retries,
            runtime.admission.guards,
            runtime.primitives,
            Pod(
                server=settings.server,
                environment=settings.environment,
                service=settings.service,
                zone=settings.zone,
                version=agent_version(),
                ready=self.ready(),
                pressure=self.pressure().value,
                mode=self.mode,
                revision=runtime.configuration.snapshot.head.revision,
                breakers=self.views(),
            ),
        )

    def enter_request(
        self, tenant: str | None, subject: Subject = NO_SUBJECT, method: str = "", path: str = ""
    ) -> ServedRequest | Decision | None:
        """The first step of a request, before ``admit_request``; the middlewares call it.

        A ``Decision`` refuses the request. A ``ServedRequest`` counts it: call ``answered`` with the status
        when the response begins, and ``leave`` when the request ends, whatever happens. ``None``: nothing is
        configured, or the caller has neither tenant nor subject, like a health check.
        """
        inbound = self._runtime.inbound
        if inbound.pod is None or self._stopped:
            return None
        try:
            # A tenant that was here has a valid name.
            if tenant is not None and tenant not in inbound.priorities.of and not is_subject(tenant):
                tenant = INVALID
            if subject is not NO_SUBJECT:
                subject = harmless(subject, self._runtime.configuration.snapshot.tuning.ipv6_prefix)
            entered = inbound.enter(tenant, subject, method, path)
            if isinstance(entered, Decision):
                self._runtime.refusal_samples.offer(entered, subject)
                if (observer := self._runtime.observer) is not None:
                    self._safely(partial(observer.refused_unasked, entered))
            return entered
        except (Misconfigured, TypeError):
            return None  # ``admit_request`` raises it
        except Exception:
            self._note_defect()
            return None
