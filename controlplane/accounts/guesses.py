"""Failed attempts to log in from one address, over all accounts: wrong passwords and wrong codes.

allauth limits them too, but its count of an address begins again when a second-factor code of any account is
correct. So an account of one's own would be enough to guess at those of others for longer.
"""

from django.core.cache import cache

from fuseboard.contract.addresses import counted_address

#: Failed attempts of one address within a minute.
MAX_FAILED_ATTEMPTS = 20
FOR_S = 60


def take(address: str) -> str | None:
    """Count an attempt before it is known how it ends. Returns what ``give_back`` needs if it ends well.

    ``None`` if there were too many. Each attempt is an entry that expires by itself, and only one of several
    concurrent attempts can add it.
    """
    for number in range(MAX_FAILED_ATTEMPTS):
        entry = f"fuseboard.login_failed:{counted_address(address)}:{number}"
        if cache.add(entry, 1, timeout=FOR_S):
            return entry
    return None


def give_back(entry: str) -> None:
    """This attempt did not fail. Others of the address still count."""
    cache.delete(entry)
