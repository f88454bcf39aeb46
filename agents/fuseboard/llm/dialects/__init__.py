"""The formats of vendors. No format is translated: a dialect only reads."""

from fuseboard.llm.dialects.anthropic_messages import AnthropicMessages
from fuseboard.llm.dialects.dialect import Dialect
from fuseboard.llm.dialects.openai_chat import OpenAIChat
from fuseboard.llm.dialects.openai_completions import OpenAICompletions
from fuseboard.llm.dialects.openai_embeddings import OpenAIEmbeddings
from fuseboard.llm.dialects.openai_responses import OpenAIResponses

__all__ = ["DIALECTS", "Dialect", "dialect_of"]

#: The first one whose path fits counts.
DIALECTS: tuple[Dialect, ...] = (
    OpenAIChat(),
    OpenAIResponses(),
    OpenAIEmbeddings(),
    AnthropicMessages(),
    OpenAICompletions(),
)


def dialect_of(method: str, path: str) -> Dialect | None:
    """By the end of the path; ``None`` for a request that asks no model."""
    if method != "POST":
        return None
    return next((dialect for dialect in DIALECTS if path.endswith(dialect.path)), None)
