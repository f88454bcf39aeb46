"""Calendar periods in a time zone, as store time in microseconds."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from fuseboard.contract.words import Period


def period_around(now_us: int, period: Period, time_zone: str) -> tuple[int, int]:
    """The period that holds ``now_us``: its first microsecond, and that of the next.

    Days of 23 and 25 hours come out as they are, where clocks change.
    """
    zone = ZoneInfo(time_zone)
    here = datetime.fromtimestamp(now_us / 1_000_000, UTC).astimezone(zone)
    first = here.replace(minute=0, second=0, microsecond=0, fold=here.fold)
    if period is Period.HOUR:
        began = first.astimezone(UTC)
        return _us(began), _us(began + timedelta(hours=1))
    first = first.replace(hour=0, fold=0)
    if period is Period.DAY:
        last = first + timedelta(days=1)
    elif period is Period.WEEK:
        first -= timedelta(days=here.weekday())
        last = first + timedelta(days=7)
    else:
        first = first.replace(day=1)
        last = (first + timedelta(days=32)).replace(day=1)
    return _us(first), _us(last)


def _us(moment: datetime) -> int:
    return int(moment.astimezone(UTC).timestamp()) * 1_000_000
