"""Draws each fragment of a topic once, and finds what differs from what was sent before."""

from dataclasses import dataclass, field

from dashboard.live.overview import Live
from dashboard.live.pages import Page
from dashboard.live.topics import Context, Fragment, fragments


@dataclass
class SentFragments:
    """What the sockets of one topic have received."""

    html: dict[str, str] = field(default_factory=dict)
    #: List -> the ids of its items.
    shape: dict[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Drawing:
    #: What changed, as one message; empty when only the clock did.
    changed: str
    #: Everything, for a socket that is new or has missed a message.
    whole: str


def draw(page: Page, sent: SentFragments, *, rev: int, announce: str) -> Drawing:
    """One message for every socket on the topic. Updates ``sent``."""
    context = page.context
    changed: list[str] = []
    whole: list[str] = []
    for fragment in fragments(page.topic, context):
        html = fragment.html(context)
        whole.append(wrap(fragment.target, html))
        if fragment.items:
            # Once a list was sent empty, it counts as changed, even when it is empty again.
            sent.html.pop(fragment.target, None)
            changed += _changed_items(fragment, html, context, sent)
        elif sent.html.get(fragment.target) != html:
            sent.shape.pop(fragment.target, None)
            sent.html[fragment.target] = html
            changed.append(wrap(fragment.target, html))
    return Drawing(
        changed="".join([*changed, _tick(context, rev, announce, whole=False)]),
        whole="".join([*whole, _tick(context, rev, "", whole=True)]),
    )


def _changed_items(fragment: Fragment, html: str, context: Context, sent: SentFragments) -> list[str]:
    """The whole list when its members or their order changed, otherwise the items that changed."""
    shape = tuple(item.target for item in fragment.items)
    drawn = [(item.target, item.html(context)) for item in fragment.items]
    same_shape = sent.shape.get(fragment.target) == shape
    sent.shape[fragment.target] = shape
    fresh = [(target, item) for target, item in drawn if sent.html.get(target) != item]
    sent.html.update(fresh)
    if not same_shape:
        return [wrap(fragment.target, html)]
    return [wrap(target, item) for target, item in fresh]


def _tick(context: Context, rev: int, announce: str, *, whole: bool) -> str:
    html = Fragment("tick", "frame.html#tick", {"rev": rev, "say": announce, "whole": whole}).html(context)
    return wrap("tick", html)


def wrap(target: str, html: str) -> str:
    # By attribute, because a name may contain dots, which end an id in a #selector.
    return f'<hx-partial hx-target="[id=\'{target}\']" hx-swap="outerMorph">{html}</hx-partial>'


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
        sentences.append(f"{local} pod{'' if local == 1 else 's'} on local fallback")
    elif were and not local:
        sentences.append("No pod is on local fallback any more")
    return ". ".join(sentences)
