"""The errors of a guarded client of OpenAI for a refused request: see ``fuseboard.guard``."""

import openai

from fuseboard.integrations.guarded_request import ModelCallRefused


class CallRefused(ModelCallRefused, openai.APIConnectionError):
    """The request was not sent. ``decision`` says why, and when to try again."""
