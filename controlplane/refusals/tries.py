"""How often one person or program may ask about a token: enough for support, too little for guessing."""

from hashlib import sha256

from django.core.cache import cache

from fuseboard.contract.portable import Portable

#: Tries of one caller within a minute, over all web processes.
MAX_TRIES = 20
FOR_S = 60


class TooManyTries(Portable, Exception):
    """The caller asked about too many tokens within a minute."""

    def __init__(self) -> None:
        super().__init__(f"You can explain {MAX_TRIES} tokens per minute. Try again in a minute.")


def take_try(caller: str) -> None:
    """Count a try, whether it succeeds or not. Raises ``TooManyTries``.

    Each is an entry that expires by itself, and only one of several concurrent requests can add it.
    """
    name = sha256(caller.encode()).hexdigest()[:32]
    keys = [f"fuseboard.explain:{name}:{number}" for number in range(MAX_TRIES)]
    if not any(cache.add(key, 1, timeout=FOR_S) for key in keys):
        raise TooManyTries
