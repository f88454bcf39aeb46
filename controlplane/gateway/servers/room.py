"""The choice of the pod that a full fleet drops for a new one."""

from controlplane.gateway.servers.server import KnownServer


class Room:
    """The pods of a fleet by the token that brought them, the one that was silent longest first.

    One token can invent pods until the fleet is full. It must not lock out the pods of other tokens.
    """

    def __init__(self) -> None:
        #: Pods that never counted a request.
        self._idle: dict[str, None] = {}
        #: Pods read back from Postgres have no token until their first heartbeat.
        self._by_token: dict[str, dict[str, None]] = {}

    def take(self, server: KnownServer) -> None:
        """This pod was heard now, with the token ``server.kept_for``."""
        name = server.beat.server
        if not server.spending:
            self._idle[name] = None
        self._by_token.setdefault(server.kept_for, {})[name] = None

    def leave(self, server: KnownServer) -> None:
        """Forget this pod, or what was known of it until now."""
        name = server.beat.server
        self._idle.pop(name, None)
        pods = self._by_token.get(server.kept_for, {})
        pods.pop(name, None)
        if not pods:
            self._by_token.pop(server.kept_for, None)

    def to_drop(self, token: str) -> str | None:
        """Whom to drop for a new pod of this token: one without requests, or one of the token with most pods.

        ``None`` if this token has as many pods as any other one.
        """
        if self._idle:
            return next(iter(self._idle))
        most = max(self._by_token.values(), key=len, default={})
        own = self._by_token.get(token, {})
        return next(iter(most)) if len(most) > len(own) + 1 else None
