"""The language models of the demo: their pools, accounts, prices and budgets, and who asks them.

The prices are examples of December 2025, as those of ``docs/examples/models.yaml``. ``LARGE`` is made up:
with it, a checkpoint spends a budget within seconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tools.demo.scenario import STORYTELLER

#: The service that asks the models, and its one pod.
ASSISTANT = "assistant"

#: The pools of the models.
OPENAI, OPENAI_MINI, ANTHROPIC = "openai", "openai-mini", "anthropic"

#: Calls per second that the assistant makes by itself.
CALLS_PER_S = 1.5

GPT, MINI, LARGE = "gpt-5.2", "gpt-5.2-mini", "gpt-made-up-large"
SONNET, HAIKU = "claude-sonnet-4-6", "claude-haiku-4-5"
#: The models that are asked in the format of Anthropic; all others are asked in that of OpenAI.
CLAUDES = (SONNET, HAIKU)


@dataclass(frozen=True, kw_only=True)
class Pool:
    """A dependency of models that share limits and a breaker."""

    name: str
    title: str
    fallback: str
    #: Measure -> how much of it the vendor allows per minute.
    per_minute: Mapping[str, int]


POOLS = (
    Pool(
        name=OPENAI,
        title="OpenAI, large models",
        fallback="Claude answers instead.",
        per_minute={"calls": 600, "tokens": 2_000_000},
    ),
    Pool(
        name=OPENAI_MINI,
        title="OpenAI, small models",
        fallback="Tickets get their titles later.",
        per_minute={"calls": 240, "tokens": 1_000_000},
    ),
    Pool(
        name=ANTHROPIC,
        title="Anthropic",
        fallback="The customer reads the whole ticket.",
        per_minute={"calls": 600, "input_tokens": 1_000_000, "output_tokens": 200_000},
    ),
)

#: Breaker columns that differ from the preset of a language model: an open breaker must not take a minute.
BREAKER = {"open_ms": 2_000, "open_max_ms": 8_000}

#: Account -> its pools.
ACCOUNTS = {"openai-main": [OPENAI, OPENAI_MINI], "anthropic-main": [ANTHROPIC]}

PRICED_SINCE = "2025-12-01"


@dataclass(frozen=True, kw_only=True)
class Priced:
    """A model and its price: whole micro-USD per million tokens."""

    name: str
    pool: str
    price: Mapping[str, int]
    aliases: tuple[str, ...] = ()


MODELS = (
    Priced(
        name=GPT,
        pool=OPENAI,
        price={"input": 2_500_000, "cached": 250_000, "output": 10_000_000},
        aliases=("assistant-large",),
    ),
    Priced(name=MINI, pool=OPENAI_MINI, price={"input": 150_000, "output": 600_000}),
    Priced(name=LARGE, pool=OPENAI, price={"input": 20_000_000, "output": 160_000_000}),
    Priced(
        name=SONNET,
        pool=ANTHROPIC,
        price={"input": 3_000_000, "cached": 300_000, "written": 3_750_000, "output": 15_000_000},
    ),
    Priced(name=HAIKU, pool=ANTHROPIC, price={"input": 800_000, "output": 4_000_000}),
)

#: The budget that a checkpoint spends, and its amount in micro-USD.
STORY_BUDGET, STORY_AMOUNT = "storyteller-hour", 10_000_000

#: The tenant of that budget has another one, in tokens.
STORY_TOKENS = "storyteller-tokens"

#: Budget -> its fields.
BUDGETS: Mapping[str, Mapping[str, Any]] = {
    "openai-month": {"account": "openai-main", "amount": 2_000_000_000, "period": "month"},
    "anthropic-day": {"account": "anthropic-main", "amount": 100_000_000, "period": "day"},
    "pro-day": {"tier": "pro", "amount": 20_000_000, "period": "day", "at_100": "degrade"},
    STORY_BUDGET: {"tenant": STORYTELLER, "amount": STORY_AMOUNT, "period": "hour"},
    STORY_TOKENS: {"tenant": STORYTELLER, "amount": 50_000_000, "period": "day", "measure": "tokens"},
}


@dataclass(frozen=True, kw_only=True)
class Job:
    """Work that the assistant does for tenants again and again."""

    model: str
    #: What it asks for; the text that it is about has ``letters`` letters.
    wish: str
    letters: int
    max_tokens: int
    streams: bool = False
    #: How often it comes, compared with the others.
    weight: int
    #: Tenant -> how much of it is done for that tenant, compared with the others.
    tenants: Mapping[str, int] = field(
        default_factory=lambda: {"acme-retail": 6, "globex": 4, "initech": 2, "umbrella-labs": 1}
    )


JOBS = (
    Job(model=MINI, wish="Give this ticket a title.", letters=900, max_tokens=24, weight=6),
    Job(model=GPT, wish="Answer this ticket.", letters=2_400, max_tokens=300, weight=2),
    Job(model=GPT, wish="Write to this customer.", letters=1_200, max_tokens=40, streams=True, weight=1),
    Job(model=SONNET, wish="Summarize this conversation.", letters=6_000, max_tokens=200, weight=2),
    Job(
        model=HAIKU, wish="Which team is this ticket for?", letters=700, max_tokens=20, streams=True, weight=2
    ),
)
