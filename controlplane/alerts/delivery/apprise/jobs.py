"""Messages to the sender and its answers, one line of JSON each."""

from enum import StrEnum
from typing import Literal

from msgspec import Struct

#: A job fits into the buffer of a pipe, so that writing it never waits.
MAX_BYTES = 32_000
_CUT = "\n…\n"
#: From the start of a job to its end. A sender that needs longer is killed.
MAX_S = 20.0
#: From the start of a sender to its readiness. With a job, it is shorter than the claim of a delivery, 60 s.
MAX_START_S = 20.0
#: A sender writes this line when it can do a job.
READY = b"ready\n"


class Kind(StrEnum):
    """How a service presents a message. A resolved one ends what the others began."""

    CRITICAL = "critical"
    WARNING = "warning"
    RESOLVED = "resolved"
    TEST = "test"
    REPORT = "report"


class Job(Struct, kw_only=True):
    url: str
    kind: Kind = Kind.TEST
    title: str = ""
    body: str = ""
    #: All messages of an alert have it: a pager makes one incident of them.
    key: str = ""
    #: The page of the alert; empty for none.
    link: str = ""
    #: Only look whether the URL is complete.
    check: bool = False


def without_middle(text: str, most: int) -> str:
    """At most this many characters (at least 10): the beginning says what happened, the end has the links."""
    if len(text) <= most:
        return text
    end = (most - len(_CUT)) // 2
    return text[: most - len(_CUT) - end] + _CUT + text[-end:]


class Result(Struct, kw_only=True):
    #: ``failed`` may be tried again, ``refused`` not.
    state: Literal["sent", "failed", "refused"]
    #: A description of the result, without secrets.
    said: str
