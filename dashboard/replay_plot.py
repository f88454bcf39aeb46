"""The chart of a replay: recorded demand, and the limit before and after an edit."""

from collections.abc import Callable
from datetime import UTC, datetime

from django.utils.html import format_html
from django.utils.safestring import SafeString

from controlplane.usage.demand_spans import SPAN_S
from controlplane.usage.what_if import WhatIf
from dashboard.plots import short, svg

_WIDTH, _HEIGHT = 320, 96


def replay_plot(found: WhatIf) -> SafeString:
    """Lines per minute over the days of the replay. What is not known is blank.

    With one tenant, the lines are its limits; with several, what their limits let through.
    """
    spans = {span.at: span for span in found.spans}
    newest = max(spans, default=0)
    places = [newest - SPAN_S * back for back in range(found.days * 86_400 // SPAN_S, -1, -1)]
    limits = (found.limit_before, found.limit_after)
    top = max([1.0, *(span.asked for span in found.spans), *(limit for limit in limits if limit)]) * 1.08

    def y(value: float) -> str:
        return short(_HEIGHT - value / top * _HEIGHT)

    step = _WIDTH / max(1, len(places) - 1)

    def line(value: Callable[[int], float]) -> str:
        """Steps of known spans, so that a single one is visible too."""
        return "".join(
            f"M{short(place * step)} {y(value(at))}h{short(step)}"
            for place, at in enumerate(places)
            if at in spans
        )

    demand = "".join(
        f"M{short(place * step)} {_HEIGHT}V{y(spans[at].asked)}h{short(step)}V{_HEIGHT}Z"
        for place, at in enumerate(places)
        if at in spans
    )
    body = f'<path class="demand" d="{demand}"/>'
    if limits == (None, None):
        body += f'<path class="before" d="{line(lambda at: spans[at].allowed_before)}"/>'
        body += f'<path class="after" d="{line(lambda at: spans[at].allowed_after)}"/>'
    else:
        for css, limit in (("before", found.limit_before), ("after", found.limit_after)):
            if limit is not None:
                body += f'<path class="{css}" d="M0 {y(limit)}H{_WIDTH}"/>'
    newest_end = newest + SPAN_S
    return format_html(
        '<span class="replay-axis"><span>{} requests per min</span></span>{}'
        '<span class="replay-axis"><span>{}</span><span>{} UTC</span></span>',
        f"{top:,.0f}",
        svg("replay", f"0 0 {_WIDTH} {_HEIGHT}", _words(found), body),
        f"{datetime.fromtimestamp(newest_end - found.days * 86_400, UTC):%-d %b}",
        f"{datetime.fromtimestamp(newest_end, UTC):%-d %b}",
    )


def _words(found: WhatIf) -> str:
    most = max((span.asked for span in found.spans), default=0)
    words = f"Demand of the last {found.days} days: at most {most:,} requests in a minute."
    if (found.limit_before, found.limit_after) == (None, None):
        return f"{words} Refused before: {found.refused_before:,}, after: {found.refused_after:,}."
    before, after = (_limit_words(each) for each in (found.limit_before, found.limit_after))
    return f"{words} Limit before: {before}, after: {after}."


def _limit_words(limit: float | None) -> str:
    return "none" if limit is None else f"{limit:,.0f} per min"
