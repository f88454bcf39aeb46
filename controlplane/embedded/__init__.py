"""A real Postgres and two real Valkeys for installations that configure none.

``running()`` starts them as child processes while a block runs, with their data in the git-ignored
folder ``.fuseboard``. Setting ``DATABASE_URL``, ``FUSEBOARD_REDIS_URL`` or
``FUSEBOARD_BROKER_URL`` uses that server instead; nothing else changes. ``limits`` and ``broker``
are two servers, so that a full queue never affects a limit.

Nothing here imports Django, because the agent's tests use it too.
"""

from controlplane.embedded.children import ServerFailed
from controlplane.embedded.servers import FOLDER, SERVERS, Running, look_up, revive, running, unconfigured

__all__ = ["FOLDER", "SERVERS", "Running", "ServerFailed", "look_up", "revive", "running", "unconfigured"]
