"""Calendar periods in a time zone, as store time in microseconds."""

from datetime import UTC, datetime, timedelta, tzinfo

from fuseboard.contract.words import Period


def period_around(now_us: int, period: Period, time_zone: str) -> tuple[int, int]:
    """The period that contains ``now_us``: its first microsecond, and the first one of the next period.

    Where clocks change, a day has 23 or 25 hours. Where they change by half an hour, an hour may have
    90 minutes.
    """
    # Only for calendar limits: it is half a megabyte.
    from zoneinfo import ZoneInfo

    zone = ZoneInfo(time_zone)
    now = datetime.fromtimestamp(now_us / 1_000_000, UTC)
    if period is Period.HOUR:
        return _hour_around(now, zone)
    here = now.astimezone(zone)
    first = here.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    if period is Period.DAY:
        last = first + timedelta(days=1)
    elif period is Period.WEEK:
        first -= timedelta(days=here.weekday())
        last = first + timedelta(days=7)
    else:
        first = first.replace(day=1)
        last = (first + timedelta(days=32)).replace(day=1)
    return _us(first), _us(last)


def _hour_around(now: datetime, zone: tzinfo) -> tuple[int, int]:
    # Every offset in use is a multiple of 15 minutes, and no hour is longer than two.
    quarter = timedelta(minutes=15)
    before = now.replace(minute=now.minute // 15 * 15, second=0, microsecond=0)
    strikes = [at for steps in range(-8, 9) if (at := before + steps * quarter).astimezone(zone).minute == 0]
    return _us(max(at for at in strikes if at <= now)), _us(min(at for at in strikes if at > now))


def _us(moment: datetime) -> int:
    return int(moment.astimezone(UTC).timestamp()) * 1_000_000
