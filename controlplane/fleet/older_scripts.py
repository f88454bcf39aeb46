"""Live pods whose scripts cannot read what a limit has counted under another rule."""

from controlplane.fleet.models import Server, ServerState

_LIVE = (ServerState.ONLINE, ServerState.LATE, ServerState.UNKNOWN)


def older_scripts_words(environment: str) -> str:
    """What these pods do after a limit begins to count in another way; empty if there are none."""
    older = Server.objects.filter(environment=environment, state__in=_LIVE, carries_counts=False)
    names = list(older.order_by("name").values_list("name", flat=True))
    if not names:
        return ""
    who = f"1 pod runs an older agent ({names[0]})"
    if len(names) > 1:
        more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
        who = f"{len(names):,} pods run an older agent ({', '.join(names[:3])}{more})"
    return (
        f"{who}: after this change they may refuse until the next window, and count from 0 in another"
        " calendar period. Update them first."
    )
