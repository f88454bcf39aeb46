from dataclasses import dataclass
from typing import Literal

#: Postgres itself writes rows with the origin ``sql``.
Origin = Literal["form", "api", "celery", "command"]


@dataclass(frozen=True)
class Actor:
    """The author of a change, and the place that it came from."""

    name: str
    role: str
    origin: Origin
    #: Address of the client, as the server saw it.
    address: str = ""
    #: Username of the responsible person, if ``name`` is not a username: the owner of a token.
    person: str = ""
    #: The selector of the token that was used, which is public.
    token: str = ""


#: The author of automatic changes, such as ending an override that expired.
FUSEBOARD = Actor(name="fuseboard", role="admin", origin="celery")
#: The author of what is done with ``manage.py`` on the server.
COMMAND_LINE = Actor(name="command line", role="admin", origin="command")
