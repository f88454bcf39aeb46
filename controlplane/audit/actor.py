from dataclasses import dataclass
from typing import Literal

#: Rows of ``sql`` are written by Postgres itself.
Origin = Literal["form", "api", "celery", "command"]


@dataclass(frozen=True)
class Actor:
    """Who changes something, and from where."""

    name: str
    role: str
    origin: Origin
    #: Of the client, as the server saw it.
    address: str = ""
    #: Username of the person who answers for it, where ``name`` is not theirs: of a token's owner.
    person: str = ""


#: What the control plane does by itself, such as ending an override that expired.
FUSEBOARD = Actor(name="fuseboard", role="admin", origin="celery")
