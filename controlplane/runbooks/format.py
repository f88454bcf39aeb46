"""The format of a runbook: Markdown with five sections, and three extensions.

* ``{{ value "redis_p99" }}`` and ``{{ value "breaker_state" dependency }}``: a live figure.
* ``- [ ] Look at it``: a step that people tick during an incident.
* A fenced block ``action reset-breaker``: a button that opens the usual form.

Values and actions are closed lists, and raw HTML is displayed as text: whoever edits a runbook can neither
run a script nor read what its readers may not.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token

SECTIONS = ("Symptoms", "Impact", "Resolution", "Verification", "Escalation")
MAX_STEPS = 99
#: A step is kept in the timeline of an incident with its words.
LONGEST_STEP = 500

#: Value -> what it is of: ``dependency``, or an empty text for the fleet.
VALUES: dict[str, str] = {
    "alerts_evaluated": "",
    "backlog_dead": "dependency",
    "backlog_jobs": "dependency",
    "backlog_wait": "dependency",
    "blocked": "dependency",
    "breaker_failures": "dependency",
    "breaker_state": "dependency",
    "bulkhead_refused": "dependency",
    "bulkhead_slots": "dependency",
    "busiest_tenant": "",
    "calls": "dependency",
    "call_p99": "dependency",
    "config_lag": "",
    "decided_locally": "",
    "divisor": "",
    "fallbacks": "dependency",
    "gateways": "",
    "owner": "dependency",
    "pods_lagging": "",
    "pods_live": "",
    "pods_local": "",
    "pods_pressed": "",
    "pods_rejected": "",
    "pods_silent": "",
    "pods_unready": "",
    "postgres": "",
    "redis_deadline": "",
    "redis_down": "",
    "redis_failed_checks": "",
    "redis_lag": "",
    "redis_memory": "",
    "redis_ops": "",
    "redis_p99": "",
    "redis_usual": "",
    "refused_share": "",
    "refused_tenant": "",
    "retries": "dependency",
    "revision": "",
    "schedules_failed": "",
    "shed": "",
    "slow_calls": "dependency",
    "vendor_refused": "",
    "without_retry_budget": "dependency",
}


@dataclass(frozen=True)
class Action:
    label: str
    #: The right that the form needs.
    right: str
    #: ``dependency`` if the form is of one.
    of: str = ""


#: Only forms that a person has to send: a click on a button of a runbook changes nothing yet.
ACTIONS: dict[str, Action] = {
    "add-note": Action("Add a note", "edit_incident"),
    "change-dependency": Action("Change settings", "edit_breaker_policy", "dependency"),
    "change-protection": Action("Change the protection of pods", "edit_breaker_policy"),
    "change-quota": Action("Choose a tenant", "edit_quota"),
    "end-drill": Action("End the drill", "run_drills"),
    "end-override": Action("End the override", "end_override", "dependency"),
    "force-open": Action("Force open", "override_breaker", "dependency"),
    "freeze-edits": Action("Freeze edits", "freeze_edits"),
    "mute-alert": Action("Mute", "mute_alerts"),
    "reset-breaker": Action("Reset", "reset_breaker", "dependency"),
    "revert-change": Action("Find the change to revert", "view"),
    "revoke-token": Action("Revoke a token", "manage_tokens"),
    "send-test-message": Action("Test a receiver", "manage_receivers"),
}

_VALUE = re.compile(r"\{\{\s*value\s+\"([a-z0-9_]{1,40})\"(?:\s+([a-z]{1,20}))?\s*\}\}")
#: Text that looks like a value, and is none.
_NO_VALUE = re.compile(r"\{\{.{0,60}")
_STEP = re.compile(r"\[([ xX])\]\s+")
_ACTION = re.compile(r"action\s+([a-z0-9-]{1,40})")
_MARKUP = re.compile(r"\s+")


@dataclass(frozen=True)
class Step:
    #: From 1, in the order of the text.
    number: int
    text: str

    @property
    def of_one_case(self) -> bool:
        """Whether it begins with a question: it is only for the case that the answer is yes."""
        return "?" in self.text and "." not in self.text.partition("?")[0]

    @property
    def key(self) -> str:
        """A key that stays while the words stay: an edit that moves a step keeps its tick."""
        return step_key(self.text)


@dataclass(frozen=True)
class Document:
    tokens: Sequence[Token]
    sections: tuple[str, ...]
    steps: tuple[Step, ...]
    #: Problems that a person has to correct before it is stored.
    problems: tuple[str, ...]

    #: Sections without any text.
    empty: tuple[str, ...]

    @property
    def of_dependency(self) -> bool:
        """Whether a value or an action is of a dependency."""
        inner = [child for token in self.tokens for child in (token, *(token.children or ()))]
        actions = {token.meta["action"] for token in inner if "action" in token.meta}
        return any(token.meta.get("of") == "dependency" for token in inner) or any(
            ACTIONS[name].of == "dependency" for name in actions & ACTIONS.keys()
        )

    @property
    def to_correct(self) -> tuple[str, ...]:
        """Everything for which a text is refused. One that was stored before is displayed anyway."""
        missing = [name for name in SECTIONS if name not in self.sections]
        return (
            *(f"Add the section ## {name}." for name in missing),
            *(f"Write something below ## {name}." for name in self.empty),
            *self.problems,
        )


def step_key(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:12]


def read_runbook(body: str) -> Document:
    """The tokens of the body with steps, values and actions in them, and what is wrong."""
    tokens = markdown().parse(body)
    sections = tuple(
        tokens[place + 1].content.strip()
        for place, token in enumerate(tokens)
        if token.type == "heading_open" and token.tag == "h2"
    )
    steps = tuple(token.meta["step"] for token in tokens if "step" in token.meta)
    problems = tuple(dict.fromkeys(_problems(tokens, sections, steps)))
    return Document(tokens, sections, steps, problems, _empty(tokens))


def markdown() -> MarkdownIt:
    """A parser of its own for each text: tokens are changed while they are drawn."""
    made = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")
    made.inline.ruler.before("escape", "value", _value_rule)
    made.core.ruler.push("step", _step_rule)
    made.core.ruler.push("action", _action_rule)
    return made


def _problems(tokens: Sequence[Token], sections: tuple[str, ...], steps: tuple[Step, ...]) -> Iterator[str]:
    for name in SECTIONS:
        if sections.count(name) > 1:
            yield f"The section {name} is there twice."
    known = [name for name in sections if name in SECTIONS]
    if known != sorted(known, key=SECTIONS.index):
        yield f"Write the sections in this order: {', '.join(SECTIONS)}."
    if len(steps) > MAX_STEPS:
        yield f"A runbook has at most {MAX_STEPS} steps."
    seen: set[str] = set()
    for step in steps:
        if not step.text or len(step.text) > LONGEST_STEP:
            yield f"Step {step.number} needs 1 to {LONGEST_STEP} characters."
        if step.text in seen:
            yield f"Two steps have the same words: {step.text}"
        seen.add(step.text)
    for token in _every(tokens):
        if token.type == "value":
            yield from _problems_of_value(token.meta)
        elif token.type == "action" and token.meta["action"] not in ACTIONS:
            yield f"There is no action {token.meta['action']}. Use one of: {', '.join(ACTIONS)}."
        elif token.type == "action" and token.content.strip():
            yield f"The block of the action {token.meta['action']} must be empty."
        elif token.type == "fence" and token.info.strip().partition(" ")[0] == "action":
            yield f"Write an action as ```action reset-breaker. Use one of: {', '.join(ACTIONS)}."
        elif token.type == "text" and (found := _NO_VALUE.search(token.content)):
            yield f'{found[0]} is not a value. Write {{{{ value "redis_p99" }}}}, or use backquotes.'


def _empty(tokens: Sequence[Token]) -> tuple[str, ...]:
    """The known sections that end where they begin."""
    heads = [
        place for place, token in enumerate(tokens) if token.type == "heading_open" and token.tag == "h2"
    ]
    ends = [*heads[1:], len(tokens)]
    # A heading is three tokens: its start, its text, its end.
    found = (
        tokens[head + 1].content.strip() for head, end in zip(heads, ends, strict=False) if end - head <= 3
    )
    return tuple(name for name in found if name in SECTIONS)


def _problems_of_value(meta: dict[str, Any]) -> Iterator[str]:
    name, given = meta["name"], meta["of"]
    if name not in VALUES:
        yield f"There is no value {name}. Use one of: {', '.join(VALUES)}."
    elif VALUES[name] != given:
        subject = f" {VALUES[name]}" if VALUES[name] else ""
        yield f'Write the value as {{{{ value "{name}"{subject} }}}}.'


def _every(tokens: Sequence[Token]) -> Iterator[Token]:
    for token in tokens:
        yield token
        yield from token.children or ()


def _value_rule(state: StateInline, silent: bool) -> bool:
    found = _VALUE.match(state.src, state.pos, state.posMax)
    if found is None:
        return False
    if not silent:
        token = state.push("value", "", 0)
        token.meta = {"name": found[1], "of": found[2] or ""}
        token.content = found[0]
    state.pos = found.end()
    return True


def _step_rule(state: StateCore) -> None:
    """Marks the items of lists that begin with a box, and takes the box out of their text."""
    number = 0
    lists: list[Token] = []
    for place, token in enumerate(state.tokens):
        if token.type == "bullet_list_open":
            lists.append(token)
        elif token.type == "bullet_list_close":
            lists.pop()
        if token.type != "list_item_open" or token.markup not in "-*+" or place + 2 >= len(state.tokens):
            continue
        inline = state.tokens[place + 2]
        first = inline.children[0] if inline.type == "inline" and inline.children else None
        box = _STEP.match(first.content) if first is not None and first.type == "text" else None
        if first is None or box is None:
            continue
        first.content = first.content[box.end() :]
        number += 1
        step = Step(number, _plain(inline.children or []))
        token.meta = {"step": step}
        _close_of(state.tokens, place).meta = {"end_of": step}
        lists[-1].meta = {"steps": True}


def _close_of(tokens: Sequence[Token], place: int) -> Token:
    depth = 0
    for token in tokens[place:]:
        depth += token.nesting if token.type.startswith("list_item") else 0
        if depth == 0:
            return token
    raise ValueError(place)


def _action_rule(state: StateCore) -> None:
    for token in state.tokens:
        found = _ACTION.fullmatch(token.info.strip()) if token.type == "fence" else None
        if found is not None:
            token.type, token.meta = "action", {"action": found[1]}


def _plain(children: Sequence[Token]) -> str:
    """The words of a step without markup; a live value does not belong to them."""
    words = "".join(
        " " if child.type in ("softbreak", "hardbreak", "value") else child.content for child in children
    )
    return _MARKUP.sub(" ", words).strip()
