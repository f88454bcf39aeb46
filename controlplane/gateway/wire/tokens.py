"""Checks ``Authorization: Bearer fb_<selector>_<secret>`` in memory."""

from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest

from controlplane.gateway.wire import problems

#: Headers remembered, and the length of each. One token has several spellings, with more spaces for example.
MAX_PROVEN = 10_000
LONGEST_PROVEN = 256

#: Compared with the secret of an unknown selector, so that both refusals take equally long.
_NOBODY = sha256(b"").digest()


@dataclass(frozen=True, slots=True)
class Token:
    """One valid token; revoked ones are never loaded."""

    selector: str
    #: SHA-256 of the secret.
    digest: bytes
    environment: str
    #: Unix seconds; ``None`` for never.
    expires_at: float | None = None
    #: The only service that can use it, and how the names of its pods begin; empty for any.
    service: str = ""
    name_prefix: str = ""

    def is_over(self, now: float) -> bool:
        """Whether it has expired at the unix time ``now``."""
        return self.expires_at is not None and now >= self.expires_at

    def check_pod(self, service: str, server: str) -> None:
        """Raises ``Problem`` (403) if the token is bound to other pods."""
        if self.service and service != self.service:
            raise problems.wrong_service(service, self.service)
        if not server.startswith(self.name_prefix):
            raise problems.wrong_name(server, self.name_prefix)


class Allowance:
    """Requests per second of one sender: GCRA, with a burst."""

    __slots__ = ("_full_at", "_interval", "_tolerance")

    def __init__(self, *, rate_per_s: float, burst: int) -> None:
        self._interval = 1.0 / rate_per_s
        self._tolerance = burst / rate_per_s
        self._full_at = 0.0

    def take(self, now: float) -> float:
        """Spend one request at the monotonic time ``now``; the seconds to wait when there is none left."""
        begins = self._full_at if self._full_at > now else now
        full_at = begins + self._interval
        if full_at - now > self._tolerance:
            return full_at - now - self._tolerance
        self._full_at = full_at
        return 0.0


class TokenBook:
    """The tokens in force, by selector."""

    def __init__(self, *, rate_per_s: float, burst: int, new_names_per_min: int) -> None:
        self._rate_per_s = rate_per_s
        self._burst = burst
        self._new_names_per_min = new_names_per_min
        self._tokens: dict[str, Token] = {}
        self._allowances: dict[str, Allowance] = {}
        self._new_names: dict[str, Allowance] = {}
        #: The tokens that pods have proven, by `Authorization` header. uvicorn keeps the headers of every
        #: open connection in memory, so these secrets are there already.
        self._proven: dict[bytes, Token] = {}

    def __len__(self) -> int:
        return len(self._tokens)

    def replace(self, tokens: dict[str, Token]) -> None:
        """Replace all tokens; an allowance outlives a reload."""
        if tokens == self._tokens:
            return
        self._tokens = tokens
        self._proven = {}
        self._allowances = {name: seen for name, seen in self._allowances.items() if name in tokens}
        self._new_names = {name: seen for name, seen in self._new_names.items() if name in tokens}

    def check(self, authorization: bytes, now: float) -> Token | None:
        """The token that an `Authorization` header proves at the unix time `now`, or `None`."""
        token = self._proven.get(authorization)
        if token is None:
            token = self._prove(authorization)
        return token if token is not None and not token.is_over(now) else None

    def _prove(self, authorization: bytes) -> Token | None:
        scheme, _, credentials = authorization.partition(b" ")
        parts = credentials.strip().split(b"_", 2)
        if scheme.lower() != b"bearer" or len(parts) != 3 or parts[0] != b"fb":
            return None
        token = self._tokens.get(parts[1].decode("ascii", "replace"))
        expected = _NOBODY if token is None else token.digest
        if not compare_digest(sha256(parts[2]).digest(), expected) or token is None:
            return None
        if len(authorization) <= LONGEST_PROVEN:
            if len(self._proven) >= MAX_PROVEN:
                self._proven.clear()
            self._proven[authorization] = token
        return token

    def wait_s(self, token: Token, now: float) -> float:
        """How long the sender must wait for its next request; 0.0 when it may go on."""
        allowance = self._allowances.get(token.selector)
        if allowance is None:
            allowance = Allowance(rate_per_s=self._rate_per_s, burst=self._burst)
            self._allowances[token.selector] = allowance
        return allowance.take(now)

    def new_name_wait_s(self, token: Token, now: float) -> float:
        """How long the sender must wait until it can bring another pod with a new name; 0.0 for now."""
        allowance = self._new_names.get(token.selector)
        if allowance is None:
            per_min = self._new_names_per_min
            allowance = Allowance(rate_per_s=per_min / 60, burst=per_min)
            self._new_names[token.selector] = allowance
        return allowance.take(now)
