"""The people of all tests: their names, roles and password.

The agent's tests import this without Django, so models are imported where they are used.
"""

from functools import cache
from typing import TYPE_CHECKING, Any

from controlplane.audit.actor import Actor

if TYPE_CHECKING:
    from controlplane.accounts.models import User

#: The same for every account.
PASSWORD = "correct horse battery staple"

#: Mallory is an attacker. An account must have a role, so it has the lowest one.
ROLES = {
    "vera": "viewer",
    "olga": "operator",
    "otto": "operator",
    "ada": "admin",
    "bob": "admin",
    "mallory": "viewer",
}
VERA, OLGA, OTTO, ADA, BOB = (
    Actor(name=name, role=ROLES[name], origin="form", address="127.0.0.1")
    for name in ("vera", "olga", "otto", "ada", "bob")
)
BY_ROLE = {"viewer": VERA, "operator": OLGA, "admin": ADA}

#: Writes what a fixture prepares. It is a program, so the audit does not list it among people.
SEED = Actor(name="seed", role="admin", origin="command")


def create_person(name: str, **fields: Any) -> "User":
    """The account of one of these people. ``fields`` are more columns, or other values."""
    person = _person(name, **fields)
    person.save(force_insert=True)
    return person


def create_people(*names: str) -> None:
    from controlplane.accounts.models import User

    User.objects.bulk_create(map(_person, names))


def _person(name: str, **fields: Any) -> "User":
    from django.contrib.auth.hashers import get_hasher

    from controlplane.accounts.models import User

    password = _hashed(get_hasher().algorithm)
    return User(**{"username": name, "password": password, "role": ROLES[name], **fields})


@cache
def _hashed(algorithm: str) -> str:
    """The hash of the password, computed once: hashing is slow on purpose."""
    from django.contrib.auth.hashers import make_password

    return make_password(PASSWORD, hasher=algorithm)
