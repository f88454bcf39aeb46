"""The answers of a pod about itself: its readiness probe, and its protection as JSON."""

import json
from typing import Any, Protocol

from fuseboard.integrations.problem import Headers

Answer = tuple[int, Headers, bytes]


class Describes(Protocol):
    """``fuseboard.Agent`` and ``fuseboard.blocking.Agent``."""

    def readiness(self) -> tuple[bool, str]: ...

    def resilience(self) -> dict[str, Any]: ...


def readiness_answer(agent: Describes) -> Answer:
    """200 while the pod should get new requests, else 503."""
    ready, why = agent.readiness()
    return _json(200 if ready else 503, {"ready": ready, "because": why})


def resilience_answer(agent: Describes) -> Answer:
    return _json(200, agent.resilience())


def _json(status: int, content: dict[str, Any]) -> Answer:
    body = json.dumps(content).encode()
    headers = [
        ("content-type", "application/json"),
        ("content-length", str(len(body))),
        ("cache-control", "no-store"),
    ]
    return status, headers, body
