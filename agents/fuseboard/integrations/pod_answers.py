"""The answers of a pod about itself: its readiness probe, its protection as JSON, and its metrics."""

import json
from typing import Any, Protocol

from fuseboard.integrations.problem import Headers

Answer = tuple[int, Headers, bytes]

#: The content type of metrics.
METRICS_TEXT = "text/plain; version=0.0.4; charset=utf-8"


class Describes(Protocol):
    """``fuseboard.Agent`` and ``fuseboard.blocking.Agent``."""

    def readiness(self) -> tuple[bool, str]: ...

    def resilience(self) -> dict[str, Any]: ...

    def metrics_text(self) -> str: ...


def readiness_answer(agent: Describes) -> Answer:
    """200 while the pod should get new requests, else 503."""
    ready, why = agent.readiness()
    return _json(200 if ready else 503, {"ready": ready, "because": why})


def resilience_answer(agent: Describes) -> Answer:
    return _json(200, agent.resilience())


def metrics_answer(agent: Describes) -> Answer:
    return _answer(200, METRICS_TEXT, agent.metrics_text().encode())


def _json(status: int, content: dict[str, Any]) -> Answer:
    return _answer(status, "application/json", json.dumps(content).encode())


def _answer(status: int, kind: str, body: bytes) -> Answer:
    headers = [
        ("content-type", kind),
        ("content-length", str(len(body))),
        ("cache-control", "no-store"),
    ]
    return status, headers, body
