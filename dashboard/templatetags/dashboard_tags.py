"""Tags and filters: glyphs and plots, notices, links, and moments from which the browser counts."""

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode

from django import template
from django.forms import BoundField
from django.template.defaultfilters import date as date_filter
from django.templatetags.static import static
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from controlplane.alerts.people.routing import NO_RECEIVER
from controlplane.alerts.rules.rule import rule_of
from controlplane.alerts.state.stored_alerts import StoredAlert
from controlplane.breakers.tickets import ticket_url, ticket_words
from controlplane.phrases import listed, number, percent, usd
from controlplane.phrases import size as byte_size
from controlplane.policies.undone import Undone
from controlplane.status.incidents import trip_words
from dashboard import plots
from dashboard.forms import missing_words
from dashboard.links import element_id, limit_editor
from dashboard.live.alert_cards import AlertLine
from dashboard.live.alerts import Alert, link_of
from dashboard.live.breaker_looks import FACES
from dashboard.live.breakers import Breaker
from dashboard.live.known import NO_DATA, no_data_words
from dashboard.live.protection import duration
from dashboard.live.servers import Zone
from dashboard.replay_plot import replay_plot
from dashboard.words.browsers import browser_words
from dashboard.words.change_words import ChangeWords, words_of_fields
from dashboard.words.labels import (
    cause_words,
    config_source_words,
    drill_words,
    event_detail_words,
    event_words,
    policy_words,
    request_words,
    state_verb,
)
from dashboard.words.moments import time_tag
from dashboard.words.store_errors import store_error_words

register = template.Library()

register.simple_tag(plots.glyph, name="glyph")
register.simple_tag(plots.fleet_mark, name="fleet_mark")
register.simple_tag(replay_plot)
register.simple_tag(link_of, name="alert_url")
register.filter("element_id", element_id)
register.filter("rate", number)
register.filter("listed", listed)
register.filter("usd", usd)
register.filter("percent", lambda number: percent(number / 100))
register.filter("no_data", no_data_words)


@register.simple_block_tag(takes_context=True, end_name="endknown")
def known(context: dict[str, Any], content: str, short: bool = False) -> SafeString:
    """The block, while a gateway measures what it displays; otherwise that there is no data.

    In a narrow cell, ``short`` leaves out since when.
    """
    if not (words := context["no_data"]):
        # Safe: the block is a part of a template, whose variables have been escaped.
        return mark_safe(content)  # noqa: S308
    return format_html('<span class="quiet" title="{}">{}</span>', words, NO_DATA if short else words)


@register.simple_tag
def ticket(text: str) -> SafeString | str:
    """The ticket of an override, as a link if its address is known."""
    if not text:
        return ""
    address, words = ticket_url(text), ticket_words(text)
    if not address:
        return format_html('<span class="quiet">ticket {}</span>', words)
    return format_html(
        '<a href="{}" target="_blank" rel="noopener noreferrer" title="{}">{}</a>', address, address, words
    )


@register.simple_tag
def ring(breaker: Breaker) -> SafeString:
    return plots.ring(breaker.face.kind, breaker.drawn_ratio, breaker.shown_threshold, label=breaker.label)


@register.simple_tag
def strip(breaker: Breaker, small: bool = False) -> SafeString:
    if small:
        return plots.strip(breaker.marks[-16:], width=100, height=12)
    return plots.strip(breaker.marks, label="The last 40 seconds of calls, newest right")


@register.simple_tag
def ratio_bar(breaker: Breaker) -> SafeString:
    css = "bar-fg" if breaker.quiet and not breaker.near else "bar-st"
    return plots.bar([(css, breaker.drawn_ratio * 100)], marks=[breaker.shown_threshold * 100])


@register.simple_tag
def share_bar(share: float, hot: bool = False) -> SafeString:
    return plots.bar([("bar-st" if hot else "bar-fg", share)], height=3, css="under")


@register.simple_tag
def use_bar(use: float, limit: float) -> SafeString:
    """Use against a limit: a full bar is the limit. Above it, a mark shows where the limit is."""
    over = use > limit
    scale = max(limit, use, 1.0)
    marks = [limit / scale * 100] if over else []
    return plots.bar([("bar-st" if over else "bar-fg", use / scale * 100)], height=10, marks=marks)


@register.simple_tag
def fleet_map(zones: tuple[Zone, ...]) -> SafeString:
    return plots.fleet([(zone.name, [(r.name, r.mark, r.word_now) for r in zone.rows]) for zone in zones])


@register.simple_tag
def favicon(kind: str) -> str:
    """The icon of the tab, by the worst state of any breaker."""
    return static(f"dashboard/favicon-{kind if kind in ('open', 'half', 'forced') else 'ok'}.svg")


@register.inclusion_tag("dashboard/notice.html")
def problem(text: str) -> dict[str, Any]:
    """One thing that is wrong."""
    return _notice([text] if text else [], "st-open", "alert", "crit")


@register.inclusion_tag("dashboard/notice.html")
def problems(errors: Mapping[str, Iterable[str]] | None, named: bool = False) -> dict[str, Any]:
    """Everything that is wrong, by field; ``named`` puts the field first."""
    found = [
        f"{field[:1].upper()}{field[1:]}: {text}" if named else text
        for field, texts in (errors or {}).items()
        for text in texts
    ]
    return _notice(found, "st-open", "alert", "crit")


@register.filter
def besides(errors: Mapping[str, Iterable[str]] | None, shown: str) -> dict[str, Iterable[str]]:
    """The errors of all fields but those named, with commas: they have theirs beside them."""
    return {field: texts for field, texts in (errors or {}).items() if field not in shown.split(",")}


@register.inclusion_tag("dashboard/notice.html", takes_context=True)
def cautions(context: dict[str, Any], texts: Iterable[str]) -> dict[str, Any]:
    """Notices that an operator should look at. A link to the receivers is only for who may open them."""
    add: str = "No person is notified: an admin can add a receiver."
    if context["reader"].may("manage_receivers"):
        receivers = reverse("receivers")
        add = format_html('No person is notified: <a class="link" href="{}">add a receiver</a>.', receivers)
    return _notice([add if text == NO_RECEIVER else text for text in texts], "st-warn", "status", "warn")


def _notice(texts: list[str], css: str, role: str, glyph: str) -> dict[str, Any]:
    return {"texts": texts, "css": css, "role": role, "glyph": glyph}


@register.simple_tag
def tenant_url(key: str, quota: str = "") -> str:
    asked = {"key": key} | ({"quota": quota} if quota else {})
    return f"{reverse('tenant')}?{urlencode(asked, quote_via=quote, safe='')}"


@register.simple_tag
def quota_editor_url(key: str, quota: str, **typed: str) -> str:
    """The editor of a tenant, with the focus on one of its quotas. ``typed`` fills in columns of it."""
    return limit_editor("tenant", key, quota, **typed)


@register.simple_tag
def clear_counter_url(limit: str, *, tenant: str = "", dependency: str = "", budget: str = "") -> str:
    """The form that clears the counter of a limit, or of a budget."""
    given = {"tenant": tenant, "dependency": dependency, "limit": limit}
    if budget:
        given = {"tenant": tenant, "budget": budget}
    return reverse("clear_counter", query={name: value for name, value in given.items() if value})


@register.simple_tag
def refusals_url(**which: str) -> str:
    """The page of refusals with these filters: each figure of refusals leads there."""
    given = {name: value for name, value in which.items() if value}
    return f"{reverse('refusals')}{'?' if given else ''}{urlencode(given, quote_via=quote, safe='')}"


@register.simple_tag
def refused_link(rate: float, unit: str = "", **which: str) -> SafeString:
    """A figure of refusals, which leads to them."""
    return format_html('<a href="{}">{}{}</a>', refusals_url(**which), number(rate), unit)


@register.simple_tag
def mute_url(alert: AlertLine, minutes: int) -> str:
    """The form of a mute, with what matches this alert."""
    asked = {"rule": rule_of(alert.key)}
    if alert.subject.kind == "breaker":
        asked["dependency"] = alert.subject.name
    if len(alert.pods) == 1:
        asked["pod"] = alert.pods[0]
    asked["minutes"] = str(minutes)
    return f"{reverse('mutes')}?{urlencode(asked)}"


@register.simple_tag
def plan_url(alert: AlertLine) -> str:
    """The preview of the receivers that get this alert now."""
    asked = {"rule": rule_of(alert.key), "severity": alert.severity}
    if alert.subject.kind == "breaker":
        asked["dependency"] = alert.subject.name
    return f"{reverse('routes')}?{urlencode(asked)}"


@register.simple_tag
def runbook_url(alert: StoredAlert | Alert | AlertLine, incident: int | None = None) -> str:
    """The runbook of an alert, with the incident that keeps its ticks and the dependency of its values."""
    asked = {"incident": incident or alert.incident, "of": alert.dependency}
    query = urlencode({name: value for name, value in asked.items() if value})
    if not alert.runbook:  # of a rule that this version does not know
        return reverse("runbooks")
    return f"{reverse('runbook', args=[alert.runbook])}{f'?{query}' if query else ''}"


@register.filter
def in_words(fields: Mapping[str, tuple[Any, Any]]) -> list[ChangeWords]:
    """Fields of a thing with their values before and after, as lines of a difference."""
    return words_of_fields(fields)


@register.simple_tag
def shrinking(line: ChangeWords) -> SafeString:
    """The class of a new value that is smaller than before."""
    return SafeString(' class="st-word st-warn"' if line.shrinks else "")


@register.simple_tag
def reverted_by(undone: Undone, begins: bool = True) -> SafeString:
    """``Partly reverted by 31 (globex)``, with links; ``begins`` a sentence."""
    words = "reverted by" if undone.whole else "partly reverted by"
    links = format_html_join(
        ", ",
        '<a href="{}">{}</a>{}',
        (
            (
                reverse("revision", args=[revert.number]),
                revert.number,
                f" ({listed(revert.names, 2)})" if revert.names and not undone.whole else "",
            )
            for revert in undone.reverts
        ),
    )
    return format_html("{} {}", words.capitalize() if begins else words, links)


@register.filter
def breakable(name: str) -> SafeString:
    """A name that breaks on a narrow screen after a dot or an underscore, not within a word."""
    parts = (part for part in re.split(r"(?<=[._])", name) if part)
    return format_html_join(SafeString("<wbr>"), "{}", ((part,) for part in parts))


def _moment(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)


@register.simple_tag
def clock(at: float | None, date: bool = False) -> SafeString | str:
    """Time of day in UTC; the browser adds the local time as a tooltip."""
    if at is None:
        return ""
    moment = _moment(at)
    shown = moment.strftime("%-d %b %H:%M" if date else "%H:%M:%S")
    return time_tag(moment, shown)


@register.simple_tag
def since(at: float | None) -> SafeString | str:
    """ "for 4 min 12 s", counted by the browser; without a script, the moment it began."""
    if at is None:
        return ""
    moment = _moment(at)
    shown = f"since {moment:%H:%M:%S}"
    return format_html('<time datetime="{}" data-since="{}">{}</time>', moment.isoformat(), int(at), shown)


@register.simple_tag
def until(at: float | None, due: str = "0:00") -> SafeString | str:
    """A countdown; without a script, the moment it ends."""
    if at is None:
        return ""
    moment = _moment(at)
    return format_html(
        '<time datetime="{}" data-until="{}" data-due="{}" aria-label="at {}">{}</time>',
        moment.isoformat(),
        round(at, 1),
        due,
        f"{moment:%H:%M:%S} UTC",
        f"{moment:%H:%M:%S}",
    )


@register.simple_tag
def ago(at: float | None) -> SafeString | str:
    if at is None:
        return ""
    moment = _moment(at)
    return format_html(
        '<time datetime="{}" data-ago="{}">{}</time>', moment.isoformat(), int(at), f"{moment:%H:%M:%S}"
    )


@register.filter
def seconds(milliseconds: int) -> str:
    """10000 to "10 s", 250 to "250 ms", 2592000000 to "30 d"."""
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    value = milliseconds / 1000
    for size, word in ((86_400, "d"), (3600, "h"), (60, "min")):
        if value >= 2 * size:
            return f"{value / size:g} {word}"
    return f"{value:g} s"


@register.filter
def initials(name: str) -> str:
    """The letters in an avatar."""
    parts = [part for part in name.replace("-", ".").replace("_", ".").replace("@", ".").split(".") if part]
    return "".join(part[0] for part in parts[:2]).upper() or "?"


@register.filter
def utc(at: float) -> str:
    return f"{_moment(at):%H:%M:%S}"


@register.filter
def hm(at: float) -> SafeString:
    return time_tag(_moment(at), f"{_moment(at):%H:%M}")


@register.filter("moment")
def moment_filter(at: datetime | None, form: str) -> SafeString | str:
    """Format like ``date``, with the local time as a tooltip."""
    return time_tag(at, date_filter(at, form)) if at is not None else ""


@register.filter
def sentence_case(text: str) -> str:
    """ "Current Password", a label of allauth's, to "Current password"."""
    return text[:1] + text[1:].lower()


@register.filter
def named_errors(bound: BoundField) -> list[str]:
    """The errors of a field. That of an empty one names it."""
    found = bound.form.errors.get(bound.name)
    missing = missing_words(sentence_case(str(bound.label)))
    return [
        text
        for error in (found.as_data() if found else ())
        for text in ([missing] if error.code == "required" else error.messages)
    ]


@register.filter
def without_placeholder(bound: BoundField) -> SafeString:
    """The control without allauth's placeholder, which only repeats the label."""
    return bound.as_widget(attrs={"placeholder": ""})


@register.filter
def lower_first(text: str) -> str:
    """ "Quota changed" to "quota changed", but "PSP outage" stays."""
    return text[:1].lower() + text[1:] if text[1:2].islower() else text


register.filter("browser", browser_words)
register.filter("cause", cause_words)
register.filter("tripped", trip_words)
register.filter("config_source", config_source_words)
register.filter("drill", drill_words)
register.filter("event", event_words)
register.filter("event_detail", event_detail_words)
register.filter("mode_cause", store_error_words)
register.filter("policy", policy_words)
register.filter("duration", duration)
register.filter("bytes", byte_size)
register.filter("request_state", request_words)
register.filter("state_verb", state_verb)


@register.simple_tag
def state_word(state: str) -> SafeString:
    """A state of a breaker, coloured unless it is closed."""
    face = FACES.get(state, FACES["no_data"])
    css = f"st-word {face.css}" if face.kind != "closed" else ""
    return format_html('<span class="{}">{}</span>', css, face.word)


@register.filter
def day_time(at: float) -> SafeString:
    """Time of day for today, date and time before."""
    moment, today = _moment(at), datetime.now(UTC).date()
    return time_tag(moment, f"{moment:%H:%M}" if moment.date() == today else f"{moment:%-d %b %H:%M}")
