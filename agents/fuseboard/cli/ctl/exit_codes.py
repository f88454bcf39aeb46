"""Why a command ended, and the exit code for it."""

from enum import IntEnum

from fuseboard.contract.portable import Portable


class Exit(IntEnum):
    """Documented in docs/api.md; scripts depend on them."""

    DONE = 0
    #: The API refused it: a field is invalid, or something does not exist.
    REFUSED = 1
    #: The command or a variable is wrong; nothing was sent.
    USAGE = 2
    #: The token is invalid, or lacks the permission.
    FORBIDDEN = 3
    #: Someone else changed it meanwhile.
    CONFLICT = 4
    #: The API did not answer, or failed.
    UNREACHABLE = 5
    #: ``plan --detailed-exit-code``: applying the file would change something.
    CHANGES = 10
    #: Nothing was changed yet: someone else has to approve it first.
    WAITS = 11


class ApprovalNeeded(Portable, Exception):
    """The edit became a change request. ``content`` is the answer of the API."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        super().__init__("it waits for approval")


class Failed(Portable, Exception):
    def __init__(self, code: Exit, message: str) -> None:
        self.code = code
        super().__init__(message)


_CODES = {
    401: Exit.FORBIDDEN,
    403: Exit.FORBIDDEN,
    409: Exit.CONFLICT,
    412: Exit.CONFLICT,
    428: Exit.CONFLICT,
}


def code_of(status: int) -> Exit:
    if status >= 500 or status in (408, 429):
        return Exit.UNREACHABLE
    return _CODES.get(status, Exit.REFUSED)
