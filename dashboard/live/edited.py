"""What other people change while a form is open: read once for each revision, not for each form."""

from functools import lru_cache

from controlplane.editing import edits
from controlplane.editing.edits.edit_thing import Theirs, ThingEdit
from controlplane.errors import InvalidEdit, NotFound
from controlplane.status.facts import Facts


def edited_key(kind: str, name: str, base: int) -> str:
    """Return the key of the topic of a form: the thing, and the revision that the form shows."""
    return f"{kind} {base} {name}"


def theirs_of(key: str, facts: Facts) -> tuple[Theirs, ...]:
    """Return what was changed after the form was shown."""
    kind, _, rest = key.partition(" ")
    base, _, name = rest.partition(" ")
    if not name or not base.isdecimal() or int(base) >= facts.revision:
        return ()
    # With its time: after a restored backup, the same number names another revision.
    newest = facts.revisions[-1] if facts.revisions else (facts.revision, facts.now)
    return _read(facts.environment, kind, name, int(base), newest)


@lru_cache(maxsize=256)
def _read(environment: str, kind: str, name: str, base: int, newest: tuple[int, float]) -> tuple[Theirs, ...]:
    made = ThingEdit(environment=environment, kind=kind, name=name, typed={}, base=base)
    try:
        return tuple(edits.preview_edit(made).theirs)
    except (InvalidEdit, NotFound, KeyError):
        # It was removed, or the socket asks for something that is no form.
        return ()
