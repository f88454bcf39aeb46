"""A runbook as a person reads it: steps to tick, live values, buttons of forms, commands to copy."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from django.urls import get_script_prefix, reverse
from django.utils.html import escape, format_html
from django.utils.safestring import SafeString
from markdown_it.common.utils import escapeHtml
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict

from controlplane.runbooks.format import ACTIONS, VALUES, Action, Document, Step, markdown
from dashboard.live.runbook_values import UNKNOWN, Scene, value_of
from fuseboard.contract.words import is_slug

#: Draws a token. The environment has the ``Drawing``, and the commands that are drawn already.
_Rule = Callable[[Token, EnvType], str]


@dataclass(frozen=True, kw_only=True)
class Tick:
    by: str
    at: datetime


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """The context in which a runbook is drawn. Without a scene, its values are unknown."""

    scene: Scene | None = None
    #: The words of a step that is done -> who did it.
    ticks: Mapping[str, Tick] = field(default_factory=dict)
    #: The incident that ticks are kept in; ``None`` for boxes that cannot be ticked.
    incident: int | None = None
    #: Whether the reader may use the form of an action.
    permits: Callable[[Action], bool] = lambda action: False
    #: Whether its buttons lead nowhere: what is typed beside it would be lost.
    preview: bool = False

    @property
    def dependency(self) -> str:
        breaker = self.scene.breaker if self.scene is not None else None
        return breaker.name if breaker is not None else ""


def draw_runbook(document: Document, drawing: Drawing) -> SafeString:
    parser = markdown()
    for name, rule in _RULES.items():
        parser.add_render_rule(name, _as_rendered(rule))
    tokens = list(document.tokens)
    for part in tokens:
        for token in part.children or ():
            _keep_in_environment(token)
    text: str = parser.renderer.render(tokens, parser.options, {"drawing": drawing, "commands": []})
    # Safe: raw HTML is disabled, and the rules below escape what they write.
    return SafeString(text)


def _as_rendered(rule: _Rule) -> Callable[..., str]:
    def render(
        renderer: RendererHTML, tokens: Sequence[Token], place: int, options: OptionsDict, env: EnvType
    ) -> str:
        return rule(tokens[place], env)

    return render


def _keep_in_environment(token: Token) -> None:
    """Links to pages and to other runbooks open in the environment that the reader looks at."""
    href = str(token.attrGet("href") or "")
    if href.startswith("/") and not href.startswith("//"):
        token.attrSet("href", get_script_prefix() + href.removeprefix("/"))
    elif href.endswith(".md") and is_slug(href.removesuffix(".md")):
        token.attrSet("href", reverse("runbook", args=[href.removesuffix(".md")]))


def _open_list(token: Token, env: EnvType) -> str:
    return '<ul class="steps">\n' if token.meta.get("steps") else "<ul>\n"


def _open_item(token: Token, env: EnvType) -> str:
    step: Step | None = token.meta.get("step")
    if step is None:
        return "<li>"
    drawing: Drawing = env["drawing"]
    done = step.text in drawing.ticks
    attributes: tuple[Any, ...] = (step.key, " done" if done else "", "true" if done else "false", step.text)
    box = (
        format_html(' form="ticks" name="tick" value="{}:{}:{}"', drawing.incident, step.key, int(not done))
        if drawing.incident is not None
        else SafeString(" disabled")
    )
    return format_html(
        '<li class="step{1}" id="step-{0}">'
        '<button class="tick" type="submit" role="checkbox" aria-checked="{2}" aria-label="{3}"{4}></button>'
        "<div>",
        *attributes,
        box,
    )


def _close_item(token: Token, env: EnvType) -> str:
    step: Step | None = token.meta.get("end_of")
    if step is None:
        return "</li>\n"
    tick = env["drawing"].ticks.get(step.text)
    who = format_html('<p class="by">{}, {} UTC</p>', tick.by, _clock(tick.at)) if tick is not None else ""
    return f"{who}</div></li>\n"


def _clock(at: datetime) -> str:
    return f"{at.astimezone(UTC):%H:%M:%S}"


def _value(token: Token, env: EnvType) -> str:
    meta, scene = token.meta, env["drawing"].scene
    if VALUES.get(meta["name"]) != meta["of"]:
        return escape(token.content)
    found = value_of(meta["name"], scene) if scene is not None else UNKNOWN
    css = "value unknown" if found == UNKNOWN else "value"
    return format_html('<b class="{}" data-value="{}">{}</b>', css, meta["name"], found)


def _action(token: Token, env: EnvType) -> str:
    drawing: Drawing = env["drawing"]
    name = token.meta["action"]
    action = ACTIONS.get(name)
    if action is None:
        return f"<pre><code>action {escapeHtml(name)}</code></pre>\n"
    of = f": {drawing.dependency}" if action.of and drawing.dependency else ""
    if drawing.preview:
        return format_html('<p class="act"><span class="btn big">{}</span></p>\n', action.label)
    if not drawing.permits(action):
        words = "{}{}: your role does not permit this."
        return format_html('<p class="act hint">' + words + "</p>\n", action.label, of)
    return format_html(
        '<p class="act"><a class="btn big" data-action="{}" href="{}">{}{}</a></p>\n',
        name,
        action_url(name, drawing),
        action.label,
        of,
    )


def action_url(name: str, drawing: Drawing) -> str:
    """The page with the form of the action, filled in as far as it is known."""
    page = _FORMS[name]
    if not ACTIONS[name].of:
        if name == "add-note" and drawing.incident is not None:
            return f"{reverse('incident', args=[drawing.incident])}#f-note"
        return reverse(page)
    if not drawing.dependency:
        return reverse("breakers")
    address = reverse(page, args=[drawing.dependency])
    return f"{address}?{urlencode({'act': _ACTS[name]})}#override" if name in _ACTS else address


#: Action -> the page of its form.
_FORMS = {
    "add-note": "incidents",
    "change-dependency": "dependency",
    "change-protection": "pod_protection",
    "change-quota": "tenants",
    "end-drill": "drills",
    "end-override": "breaker",
    "force-open": "breaker",
    "freeze-edits": "edit_freeze",
    "mute-alert": "mutes",
    "reset-breaker": "breaker",
    "revert-change": "revisions",
    "revoke-token": "tokens",
    "send-test-message": "receivers",
}
#: Action -> what it chooses in the form of the breaker.
_ACTS = {"end-override": "automatic", "force-open": "forced_open", "reset-breaker": "reset"}


def _command(token: Token, env: EnvType) -> str:
    env["commands"].append(token)
    return format_html(
        '<div class="command"><pre><code id="command-{0}">{1}</code></pre>'
        '<button class="btn" type="button" data-copies="command-{0}">Copy</button></div>\n',
        len(env["commands"]),
        token.content.rstrip("\n"),
    )


_RULES: dict[str, _Rule] = {
    "action": _action,
    "bullet_list_open": _open_list,
    "code_block": _command,
    "fence": _command,
    "list_item_close": _close_item,
    "list_item_open": _open_item,
    "value": _value,
}
