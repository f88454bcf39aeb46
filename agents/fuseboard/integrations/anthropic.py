"""The errors of a guarded client of Anthropic for a refused request: see ``fuseboard.guard``."""

import anthropic

from fuseboard.integrations.guarded_request import ModelCallRefused


class CallRefused(ModelCallRefused, anthropic.APIConnectionError):
    """The request was not sent. ``decision`` says why, and when to try again."""
