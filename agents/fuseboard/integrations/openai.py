"""The errors of a guarded client of OpenAI for a request that was not sent: see ``fuseboard.guard``."""

import openai

from fuseboard.integrations.guarded_request import ModelCallRefused, RequestNotRepeated


class CallRefused(ModelCallRefused, openai.APIConnectionError):
    """The request was not sent. ``decision`` says why, and when to try again."""


class CallNotRepeated(RequestNotRepeated, openai.APIConnectionError):
    """The client tried to repeat a request itself. The request was not sent again."""
