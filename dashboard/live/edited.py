"""Changes that other people make while a form is open: read once for each revision, not for each form."""

from functools import lru_cache

from controlplane.editing import edits
from controlplane.editing.edits.edit_entity import EntityEdit, Theirs
from controlplane.errors import InvalidEdit, NotFound
from controlplane.status.facts import EnvironmentFacts


def edited_key(kind: str, name: str, base: int) -> str:
    """Return the key of the topic of a form: the thing, and the revision that the form shows."""
    return f"{kind} {base} {name}"


def theirs_of(key: str, here: EnvironmentFacts, made_at: float) -> tuple[Theirs, ...]:
    """Return what was changed after the form was shown; ``made_at`` dates the newest revision."""
    kind, _, rest = key.partition(" ")
    base, _, name = rest.partition(" ")
    if not name or not base.isdecimal() or int(base) >= here.revision:
        return ()
    # With its time: after a restored backup, the same number names another revision.
    return _read(here.environment, kind, name, int(base), (here.revision, made_at))


@lru_cache(maxsize=256)
def _read(environment: str, kind: str, name: str, base: int, newest: tuple[int, float]) -> tuple[Theirs, ...]:
    made = EntityEdit(environment=environment, kind=kind, name=name, typed={}, base=base)
    try:
        return tuple(edits.preview_edit(made).theirs)
    except (InvalidEdit, NotFound, KeyError):
        # It was removed, or the socket asks for something that is no form.
        return ()
