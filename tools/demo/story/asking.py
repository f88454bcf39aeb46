"""What the checkpoints about language models use: the assistant, the bill of its vendor, spent budgets."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import msgspec

import fuseboard
from controlplane.usage.budgets import budgets
from fuseboard import blocking
from tools.demo.assistant_api import Asked, Got, Work
from tools.demo.model_scenario import ASSISTANT, BUDGETS, CALLS_PER_S, CLAUDES, MINI, MODELS, Priced
from tools.demo.model_vendor import ModelBehaviour, Station
from tools.demo.seed import ENVIRONMENT
from tools.demo.story.chapter import Chapter, CheckFailed

_PRICED: Mapping[str, Priced] = {model.name: model for model in MODELS}
#: Budgets that the jobs of the assistant spend.
_OF_JOBS = [name for name, fields in BUDGETS.items() if "account" in fields]
_QUIET_S = 1.0
#: Corrections are sent within a moment of the end of a call, and usage within half a minute.
SETTLED_S, CONFIRMED_S = 10.0, 60.0


class Assistant:
    """The pod ``assistant``, and what its vendor knows of it. Its own jobs rest meanwhile."""

    def __init__(self, chapter: Chapter) -> None:
        self.chapter = chapter
        self._client = httpx.Client(base_url=chapter.demo.url(ASSISTANT), timeout=120.0, trust_env=False)
        self._vendor = httpx.Client(base_url=chapter.demo.url("vendor"), timeout=10.0, trust_env=False)

    def close(self) -> None:
        self._client.close()
        self._vendor.close()

    def ask(self, model: str, **more: Any) -> Got:
        body = msgspec.json.encode(Asked(model=model, **more))
        answer = self._client.post("/ask", content=body).raise_for_status()
        return msgspec.json.decode(answer.content, type=Got)

    def chain(self, model: str, **more: Any) -> dict[str, Any]:
        body = msgspec.json.encode(Asked(model=model, **more))
        found: dict[str, Any] = self._client.post("/chain", content=body).raise_for_status().json()
        return found

    def jobs(self, per_s: float, model: str = "") -> None:
        body = msgspec.json.encode(Work(per_s=per_s, model=model))
        self._client.put("/jobs", content=body).raise_for_status()

    def figures(self) -> dict[str, Any]:
        found: dict[str, Any] = self._client.get("/figures").raise_for_status().json()
        return found

    def stations(self) -> dict[str, Station]:
        """Model -> what the vendor received and charged since its start."""
        answer = self._vendor.get("/models").raise_for_status()
        return msgspec.json.decode(answer.content, type=dict[str, Station])

    def station(self, model: str) -> Station:
        return self.stations().get(model, Station())

    @contextmanager
    def behaving(self, *models: str, **behaviour: Any) -> Iterator[None]:
        """The vendor answers like this for these models meanwhile."""
        try:
            for model in models:
                self.behave(model, **behaviour)
            yield
        finally:
            for model in models:
                self.behave(model)

    def behave(self, model: str, **behaviour: Any) -> None:
        body = msgspec.json.encode(ModelBehaviour(**behaviour))
        self._vendor.put(f"/models/{model}", content=body).raise_for_status()

    def confirmed(self) -> float:
        """Wait until Postgres has all usage; return the milliseconds it took."""
        return self.chapter.until(
            "the ledger to have all calls",
            lambda: self.figures()["unconfirmed"] == 0,
            within_s=CONFIRMED_S,
        )


@contextmanager
def assistant_of(chapter: Chapter) -> Iterator[Assistant]:
    """The assistant without jobs of its own, decided by Redis."""
    assistant = Assistant(chapter)
    try:
        assistant.jobs(0)
        chapter.until(
            "the assistant to share limits", lambda: assistant.figures()["mode"] == "shared", within_s=20
        )
        seen: list[object] = [None]

        def rests() -> bool:
            received = sum(one.received for one in assistant.stations().values())
            # Corrections of calls arrive a moment after their ends.
            seen.append((received, [spent_of(budget) for budget in _OF_JOBS]))
            time.sleep(_QUIET_S)
            return seen[-2] == seen[-1]

        chapter.until("the jobs of the assistant to end, and to be counted", rests, within_s=30)
        yield assistant
    finally:
        assistant.jobs(CALLS_PER_S)
        assistant.close()


def have_record(assistant: Assistant, tenant: str, budget: str) -> None:
    """Ask for a tenant until the pod counts this budget of the tenant.

    Its record comes with its first call. When Redis is slow then, the default tier decides that call.
    """

    def counts() -> bool:
        before = spent_of(budget)
        assistant.ask(MINI, tenant=tenant, max_tokens=10)
        return spent_of(budget) > before

    assistant.chapter.until(f"the budgets of {tenant} to count", counts, within_s=20)
    time.sleep(_QUIET_S)


@contextmanager
def another_pod(chapter: Chapter, name: str) -> Iterator[blocking.Agent]:
    """A pod of the assistant in this process, for as long as the block runs."""
    with TemporaryDirectory() as folder:
        settings = fuseboard.AgentSettings(
            redis_url=chapter.limits_url,
            url=chapter.demo.url("gateway"),
            token=chapter.demo.seeded.agent_token,
            service=ASSISTANT,
            server=name,
            state_dir=Path(folder),
        )
        with blocking.Agent(settings=settings) as agent:
            chapter.until(f"{name} to share limits", lambda: agent.mode == "shared", within_s=20)
            yield agent


def micro_usd_of(model: str, before: Station, after: Station) -> int:
    """What the vendor charges for one call between, rounded up."""
    price = _PRICED[model].price
    usual = price["input"]
    exact = (
        (after.fresh - before.fresh) * usual
        + (after.cached - before.cached) * price.get("cached", usual)
        + (after.written - before.written) * price.get("written", usual)
        + (after.output - before.output) * price["output"]
    )
    return -(-exact // 1_000_000)


def tokens_of(model: str, before: Station, after: Station) -> int:
    """Tokens of the calls between, as limits count them: Anthropic does not count what its cache had."""
    names = ("fresh", "written", "output") if model in CLAUDES else ("fresh", "cached", "written", "output")
    return sum(getattr(after, name) - getattr(before, name) for name in names)


def all_tokens_of(before: Station, after: Station) -> int:
    """Input and output of the calls between."""
    return tokens_of("", before, after)


def spent_of(budget: str) -> int:
    """What Redis counted of a budget in its present period."""
    for row in budgets(ENVIRONMENT, set(), now=time.time()).rows:
        if row.title == budget and row.spent is not None:
            return row.spent
    raise CheckFailed(f"what is spent of {budget} is unknown")


def settled(chapter: Chapter, what: str, read: Callable[[], object], accept: Callable[[Any], bool]) -> float:
    """Wait until what is read is accepted; return the milliseconds it took. Raises ``CheckFailed``."""
    found: list[object] = [None]

    def holds() -> bool:
        found.append(read())
        return accept(found[-1])

    try:
        return chapter.until(what, holds, within_s=SETTLED_S)
    except CheckFailed as failed:
        raise CheckFailed(f"{failed}; found {found[-1]}") from None
