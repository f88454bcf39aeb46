"""Embeddings of OpenAI and others: an input alone."""

import msgspec
from msgspec import Struct

from fuseboard.llm.dialects.dialect import Asked
from fuseboard.llm.usage import Usage


class _Request(Struct):
    model: str = ""


class _Usage(Struct):
    prompt_tokens: int


class _Answer(Struct):
    usage: _Usage | None = None


_requests, _answers = msgspec.json.Decoder(_Request), msgspec.json.Decoder(_Answer)


class OpenAIEmbeddings:
    path = "/embeddings"
    operation, provider = "embeddings", "openai"
    counts_cached = True
    hints: tuple[bytes, ...] = ()

    def asked(self, body: bytes) -> Asked:
        return Asked(_requests.decode(body).model, most=0)

    def with_usage(self, body: bytes) -> bytes | None:
        return None

    def read_answer(self, document: bytes, usage: Usage) -> None:
        if (found := _answers.decode(document).usage) is not None:
            usage.set_input(found.prompt_tokens, 0, 0)
            usage.set_output(0)

    def read_event(self, data: bytes, usage: Usage) -> bool:
        return False
