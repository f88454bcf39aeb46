"""Draws each fragment of a topic, and makes one bounded message of those that changed.

A message is compressed once for all sockets of the topic. ``app.js`` unpacks it; it keeps the text of each
fragment, as ``SentFragments`` does.
"""

import json
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import structlog

from controlplane.phrases import count
from dashboard.live.overview import Live
from dashboard.live.pages import Page
from dashboard.live.topics import Context, Fragment, fragments

log = structlog.get_logger(__name__)

#: A tick sends no browser more than this. A change that does not fit waits for the next tick.
TICK_BYTES = 16 * 1024
#: If one change alone does not fit, all browsers get the whole page after it has waited for this time.
WHOLE_AFTER_S = 60.0


@dataclass(frozen=True)
class ItemList:
    """A fragment that consists of items: their ids, and the markup around them."""

    head: str
    order: tuple[str, ...]
    tail: str


@dataclass
class SentFragments:
    """The fragments that the browsers of one topic display, and changes that wait for a message."""

    html: dict[str, str] = field(default_factory=dict)
    lists: dict[str, ItemList] = field(default_factory=dict)
    #: Lists as they were drawn last: the markup around the items is drawn again when their order changes.
    drawn: dict[str, ItemList] = field(default_factory=dict)
    #: The id of a fragment -> since when its change waits.
    waiting: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Drawing:
    #: The changes as one message. ``None`` if every socket needs the whole page, as after the first drawing.
    changed: bytes | None
    page: dict[str, Any]

    @cached_property
    def whole(self) -> bytes:
        """Everything that the other browsers display, for a socket that is new or has missed a message."""
        return pack(self.page)


def draw(page: Page, sent: SentFragments, *, rev: int, announce: str) -> Drawing:
    """One message for every socket on the topic. Updates ``sent``."""
    html, lists = _draw_all(page, sent)
    if sent.html:
        changed = _changes(page.context, html, lists, sent, rev=rev, announce=announce)
    else:
        sent.html, sent.lists, changed = html, lists, None
    whole = {
        "rev": rev,
        "whole": True,
        "html": sent.html | {"tick": _tick(page.context, sent, rev=rev, whole=True)},
        "lists": {target: vars(one) for target, one in sent.lists.items()},
    }
    return Drawing(changed=changed, page=whole)


def _draw_all(page: Page, sent: SentFragments) -> tuple[dict[str, str], dict[str, ItemList]]:
    """The text of every fragment and item, and the lists of items."""
    html: dict[str, str] = {}
    lists: dict[str, ItemList] = {}
    for fragment in fragments(page.topic, page.context):
        if fragment.items is None:
            html[fragment.target] = fragment.html(page.context)
            continue
        items = {item.target: item.html(page.context) for item in fragment.items}
        html |= items
        before = sent.drawn.get(fragment.target)
        if before is None or not items or before.order != tuple(items):
            lists[fragment.target] = _item_list(fragment, items, page.context)
        else:
            lists[fragment.target] = before
    sent.drawn = lists
    return html, lists


def _item_list(fragment: Fragment, items: dict[str, str], context: Context) -> ItemList:
    drawn = fragment.html(context)
    if not items:
        return ItemList(head=drawn, order=(), tail="")
    texts = list(items.values())
    start, end = drawn.index(texts[0]), drawn.rindex(texts[-1]) + len(texts[-1])
    return ItemList(head=drawn[:start], order=tuple(items), tail=drawn[end:])


def _changes(
    context: Context,
    html: dict[str, str],
    lists: dict[str, ItemList],
    sent: SentFragments,
    *,
    rev: int,
    announce: str,
) -> bytes | None:
    """Encode as many changes as one message has room for, the most urgent first. The others wait."""
    now = context["live"].facts.now
    queue = _queue(html, lists, sent, now=now)
    count = len(queue)
    while True:
        shown = _with(queue[:count], html, lists, sent)
        tick = _tick(context, shown, rev=rev, announce=announce)
        message = pack({"rev": rev, **_difference(sent, shown, tick)})
        if len(message) <= TICK_BYTES or not queue:
            break
        if count == 1:
            alone = queue.pop(0)
            log.warning("hub.change_too_large", fragment=alone, bytes=len(message))
            if now - sent.waiting[alone] >= WHOLE_AFTER_S:
                sent.html, sent.lists, sent.waiting = html, lists, {}
                return None
            count = len(queue)
        else:
            count = max(1, min(count - 1, int(count * 0.9 * TICK_BYTES / len(message))))
    sent.html, sent.lists, sent.waiting = shown.html, shown.lists, shown.waiting
    return message


def _queue(html: dict[str, str], lists: dict[str, ItemList], sent: SentFragments, *, now: float) -> list[str]:
    """Return the fragments that differ from those sent, the most urgent first. Note since when each waits."""
    changed = [target for target, one in lists.items() if sent.lists.get(target) != one]
    changed += [target for target in html if sent.html.get(target) != html[target]]
    sent.waiting = {target: sent.waiting.get(target, now) for target in changed}
    items = {item for one in lists.values() for item in one.order}

    def urgency(target: str) -> tuple[bool, float]:
        # The opening tag of an item has its state. A change of figures can wait.
        calm = target in items and _opening(sent.html.get(target, "")) == _opening(html[target])
        return calm, sent.waiting[target]

    return sorted(changed, key=urgency)


def _opening(html: str) -> str:
    return html.partition(">")[0]


def _with(
    chosen: Iterable[str], html: dict[str, str], lists: dict[str, ItemList], sent: SentFragments
) -> SentFragments:
    """The fragments that browsers display after a message with these changes."""
    fresh = dict.fromkeys(chosen)
    after = sent.html | {target: html[target] for target in fresh if target in html}
    # An item that waits for its first message is not in its list yet.
    orders = {
        target: replace(lists[target], order=tuple(item for item in lists[target].order if item in after))
        for target in fresh
        if target in lists
    }
    shown = {target: one for target, one in sent.lists.items() if target in lists} | orders
    kept = html.keys() | {item for one in shown.values() for item in one.order}
    return SentFragments(
        html={target: text for target, text in after.items() if target in kept},
        lists=shown,
        drawn=sent.drawn,
        waiting={target: since for target, since in sent.waiting.items() if target not in fresh},
    )


def _difference(before: SentFragments, after: SentFragments, tick: str) -> dict[str, Any]:
    html = {target: text for target, text in after.html.items() if before.html.get(target) != text}
    lists: dict[str, dict[str, Any]] = {}
    for target, one in after.lists.items():
        was = before.lists.get(target, ItemList("", (), ""))
        if one != was:
            around = (
                {"head": one.head, "tail": one.tail} if (one.head, one.tail) != (was.head, was.tail) else {}
            )
            lists[target] = {"order": _runs(was.order, one.order), **around}
    return {"html": html | {"tick": tick}, "lists": lists}


def _runs(before: tuple[str, ...], after: tuple[str, ...]) -> list[str | list[int]]:
    """``after``, as ranges of places in ``before``, and as ids that were not there."""
    places = {item: place for place, item in enumerate(before)}
    runs: list[str | list[int]] = []
    for item in after:
        place = places.get(item)
        if place is None:
            runs.append(item)
        elif runs and isinstance(runs[-1], list) and runs[-1][1] == place:
            runs[-1][1] += 1
        else:
            runs.append([place, place + 1])
    return runs


def _tick(context: Context, sent: SentFragments, *, rev: int, announce: str = "", whole: bool = False) -> str:
    now = context["live"].facts.now
    fields = {"rev": rev, "say": announce, "whole": whole, "shown": min(sent.waiting.values(), default=now)}
    return Fragment("tick", "frame.html#tick", fields).html(context)


def pack(message: dict[str, Any]) -> bytes:
    return zlib.compress(json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode())


def announcement(before: Live | None, after: Live) -> str:
    """One sentence per breaker that changed, for people who listen to the page."""
    if before is None:
        return ""
    faces = {breaker.name: breaker.face for breaker in before.breakers}
    sentences = [
        f"{b.name} is {b.face.verb}" for b in after.breakers if b.name in faces and faces[b.name] != b.face
    ]
    local, were = len(after.fleet.local), len(before.fleet.local)
    if local > were:
        sentences.append(f"{count(local, 'pod')} on local fallback")
    elif were and not local:
        sentences.append("No pod is on local fallback any more")
    return ". ".join(sentences)
