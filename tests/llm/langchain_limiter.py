"""A service with the rate limiter of docs/frameworks.md, which has room for two more calls."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuseboard import Refused
from fuseboard.integrations.langchain import RateLimiter

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "frameworks.md").read_text()


def raised(ask: Callable[[], object]) -> Refused | None:
    """LangChain makes the call unless the limiter raises."""
    try:
        ask()
    except Refused as refused:
        return refused
    return None


def main() -> None:
    samples = re.findall(r"^```py\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    (sample,) = [one for one in samples if "RateLimiter" in one]
    names: dict[str, Any] = {}
    exec(compile(sample, "docs/frameworks.md", "exec"), names)  # noqa: S102 - our own page
    model, limiter = names["model"], names["limiter"]
    agent = limiter._agent
    assert model.invoke("Who are you?").content
    assert asyncio.run(model.ainvoke("Who are you?")).content
    assert limiter.acquire(blocking=False) is False
    assert asyncio.run(limiter.aacquire(blocking=False)) is False
    impatient = RateLimiter(agent, dependency="llm", wait_s=0)
    refused = [raised(impatient.acquire), raised(lambda: asyncio.run(impatient.aacquire()))]
    assert [one and one.decision.rule for one in refused] == ["calls", "calls"]
    # No call keeps a slot of the bulkhead.
    assert agent.resilience()["dependencies"]["llm"]["in_flight"] == 0
    agent.stop()


if __name__ == "__main__":
    main()
