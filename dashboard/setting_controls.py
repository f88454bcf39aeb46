"""Controls of a form for settings of protection, and what was typed in them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from controlplane.errors import InvalidEdit
from controlplane.phrases import range_words
from controlplane.policies.setting_labels import name_and_unit, protection_label
from dashboard.forms import whole
from fuseboard.contract.protection_fields import TIERS, Setting

_ON_OFF = (("off", "Off"), ("on", "On"))
YES_NO = (("yes", "Yes"), ("no", "No"))


@dataclass(frozen=True, kw_only=True)
class Control:
    name: str
    label: str
    value: str
    hint: str = ""
    #: Value and word; empty for text.
    choices: Sequence[tuple[str, str]] = ()
    errors: Sequence[str] = ()
    #: A date and a time in UTC.
    moment: bool = False
    #: Lines of a larger field for text; 0 for one line.
    lines: int = 0
    #: Characters; 0 for a number.
    longest: int = 0
    #: Whether the page opens with the focus here.
    focus: bool = False

    @property
    def id(self) -> str:
        return f"f-{_plain_id(self.name)}"


@dataclass(frozen=True, kw_only=True)
class Group:
    title: str
    help: str
    controls: Sequence[Control]
    #: Whether a part is on; ``None`` for what cannot be off.
    switch: Control | None = None
    #: The parameter of the address, and the names of its presets.
    preset: str = ""
    presets: Sequence[str] = field(default_factory=tuple)
    #: Controls that few people need, folded at first.
    more: Sequence[Control] = ()

    @property
    def more_open(self) -> bool:
        """A folded control must not hide an error or the focus."""
        return any(one.errors or one.focus for one in self.more)


def _plain_id(name: str) -> str:
    """Return a name with dashes for dots, except for those in the name of a limit, which may have both."""
    group, _, rest = name.partition(".")
    if group not in ("limit", "keep"):
        return name.replace(".", "-")
    limit, _, column = rest.rpartition(".") if group == "limit" else (rest, "", "")
    return "-".join(part for part in (group, limit, column) if part)


class Typed:
    """Typed values, read field by field. ``settle`` raises ``InvalidEdit`` with every wrong field."""

    def __init__(self, data: Mapping[str, str]) -> None:
        self.data = data
        self.errors: dict[str, list[str]] = {}

    def number(self, name: str) -> int:
        try:
            return whole(self.data.get(name, ""), name)
        except InvalidEdit as error:
            self.errors.update(error.errors)
            return 0

    def value(self, setting: Setting) -> Any:
        name = f"protection.{setting.path}"
        if setting.kind == "number":
            return self.number(name)
        if setting.kind == "flag":
            return self.data.get(name) == "yes"
        if setting.kind == "word":
            return self.data.get(name, "")
        each = [f"{name}.{tier}" for tier in TIERS]
        return [self.number(one) if setting.kind == "numbers" else self.data.get(one, "") for one in each]

    def parts(self, settings: Iterable[Setting]) -> dict[str, Any]:
        """The values of settings, by part; ``None`` for a part that is off."""
        found: dict[str, Any] = {}
        for setting in settings:
            if setting.part and self.data.get(f"protection.{setting.part}.on") != "on":
                found[setting.part] = None
                continue
            part = found.setdefault(setting.part, {}) if setting.part else found
            part[setting.name] = self.value(setting)
        return found

    def settle(self) -> None:
        if self.errors:
            raise InvalidEdit(self.errors)


def setting_values(setting: Setting, present: Any) -> dict[str, str]:
    """The values in the inputs of a setting."""
    name = f"protection.{setting.path}"
    if setting.kind in ("numbers", "words"):
        return {f"{name}.{tier}": str(one) for tier, one in zip(TIERS, present, strict=True)}
    if isinstance(present, bool):
        return {name: "yes" if present else "no"}
    return {name: str(present)}


def _controls_of(setting: Setting, control: Callable[..., Control]) -> list[Control]:
    """The inputs of a setting. ``control`` adds what was typed, and its errors."""
    name = f"protection.{setting.path}"
    label = protection_label(setting)
    words = [(word, word.capitalize()) for word in setting.words]
    if setting.kind == "number":
        return [control(name, label, hint=range_words(setting.least, setting.most))]
    if setting.kind in ("flag", "word"):
        return [control(name, label, choices=words or YES_NO)]
    choices = words if setting.kind == "words" else ()
    title, unit = name_and_unit(label)
    after = f", {unit}" if unit else ""
    return [control(f"{name}.{tier}", f"{title}, {tier}{after}", choices=choices) for tier in TIERS]


def part_group(
    part: str,
    settings: Iterable[Setting],
    control: Callable[..., Control],
    *,
    others: Sequence[Control] = (),
    **options: Any,
) -> Group:
    """The inputs of a part and its switch, with ``others``. The part ``""`` cannot be off."""
    own = [one for each in settings if each.part == part for one in _controls_of(each, control)]
    switch = control(f"protection.{part}.on", "Use it", choices=_ON_OFF) if part else None
    return Group(controls=[*own, *others], switch=switch, **options)


def unplaced(
    errors: Mapping[str, Sequence[str]], found: Sequence[Group], *, beside: Sequence[str]
) -> list[str]:
    """Errors of fields that the groups do not have. ``beside`` are fields that the page shows beside them."""
    controls = [one for group in found for one in (*group.controls, *group.more)]
    shown = {text for one in controls for text in one.errors}
    others = (texts for name, texts in errors.items() if name not in beside)
    return [text for texts in others for text in texts if text not in shown]
