"""Controls of a form for settings of protection, and what was typed in them."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from controlplane.errors import InvalidEdit
from controlplane.phrases import range_words
from controlplane.policies.setting_labels import SCALES, name_and_unit, protection_label
from dashboard.forms import whole
from fuseboard.contract.protection_fields import TIERS, Setting

_DECIMAL = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_ON_OFF = (("off", "off"), ("on", "on"))
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
    #: The values that are in force, in words. A group that has it can be folded.
    summary: str = ""

    @property
    def more_open(self) -> bool:
        """A folded control must not hide an error or the focus."""
        return any(one.errors or one.focus for one in self.more)

    @property
    def open(self) -> bool:
        """A part that is off is folded, unless something in it is wrong."""
        if self.switch is None or self.switch.value == "on" or self.switch.errors:
            return True
        return any(one.errors for one in (*self.controls, *self.more))


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

    def number(self, name: str, bounds: tuple[int, int] | None = None) -> int:
        try:
            return whole(self.data.get(name, ""), name, bounds)
        except InvalidEdit as error:
            self.errors.update(error.errors)
            return 0

    def _scaled(self, name: str, setting: Setting, scale: int) -> int:
        """A number that is typed in a larger unit than it is stored in."""
        text = self.data.get(name, "").strip()
        found = Decimal(text) * scale if _DECIMAL.fullmatch(text) else None
        if found is None or found % 1 or not setting.least <= found <= setting.most:
            least, most = (f"{bound / scale:g}" for bound in (setting.least, setting.most))
            self.errors[name] = [f"Enter a number from {least} to {most}, such as 0.5."]
            return 0
        return int(found)

    def value(self, setting: Setting) -> Any:
        name = f"protection.{setting.path}"
        bounds = (setting.least, setting.most)
        if setting.kind == "number" and name in SCALES:
            return self._scaled(name, setting, SCALES[name])
        if setting.kind == "number":
            return self.number(name, bounds)
        if setting.kind == "flag":
            return self.data.get(name) == "yes"
        if setting.kind == "word":
            return self.data.get(name, "")
        each = [f"{name}.{tier}" for tier in TIERS]
        return [
            self.number(one, bounds) if setting.kind == "numbers" else self.data.get(one, "") for one in each
        ]

    def parts(self, settings: Iterable[Setting], shown: Sequence[Mapping[str, str]]) -> dict[str, Any]:
        """The values of settings, by part; ``None`` for a part that is off.

        ``shown``: the values that the form may have been drawn with. Others were typed: in a part that is
        off, they would be lost without a word.
        """
        found: dict[str, Any] = {}
        off: dict[str, list[Setting]] = {}
        for setting in settings:
            if setting.part and self.data.get(f"protection.{setting.part}.on") != "on":
                found[setting.part] = None
                off.setdefault(setting.part, []).append(setting)
                continue
            part = found.setdefault(setting.part, {}) if setting.part else found
            part[setting.name] = self.value(setting)
        for one, each in off.items():
            changed = [self._changed(each, values) for values in shown]
            if all(changed):
                what = name_and_unit(protection_label(changed[0][0]))[0]
                text = f"This part is off, and \u201c{what}\u201d was changed."
                self.errors[f"protection.{one}.on"] = [f"{text} Turn it on, or put the value back."]
        return found

    def _changed(self, settings: Iterable[Setting], values: Mapping[str, str]) -> list[Setting]:
        """The settings that were sent with another value than the form had."""
        return [
            each
            for each in settings
            for name in setting_values(each, each.default)
            if name in self.data and self.data[name].strip() != values[name]
        ]

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
    if name in SCALES:
        return {name: f"{present / SCALES[name]:g}"}
    return {name: str(present)}


def words_of(setting: Setting) -> list[tuple[str, str]]:
    return [(word, word.capitalize()) for word in setting.words]


def default_hint(label: str, value: str, choices: Sequence[tuple[str, str]] = ()) -> str:
    """``default 60,000 ms``, in the words and the unit of the control."""
    unit = name_and_unit(label)[1]
    shown = f"{int(value):,}" if value.isdecimal() else dict(choices).get(value, value).lower()
    return f"default {shown} {unit}".rstrip() if value else ""


def setting_controls(setting: Setting, control: Callable[..., Control]) -> list[Control]:
    """The inputs of a setting. ``control`` adds what was typed, and its errors."""
    name = f"protection.{setting.path}"
    label = protection_label(setting)
    words = words_of(setting)
    if setting.kind == "number":
        scale = SCALES.get(name, 1)
        return [control(name, label, hint=range_words(setting.least // scale, setting.most // scale))]
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
    seldom: Collection[str] = (),
    **options: Any,
) -> Group:
    """The inputs of a part and its switch, with ``others``. The part ``""`` cannot be off.

    ``seldom`` names settings that few people need.
    """
    of_part = [each for each in settings if each.part == part]
    own = [one for each in of_part if each.path not in seldom for one in setting_controls(each, control)]
    more = [one for each in of_part if each.path in seldom for one in setting_controls(each, control)]
    switch = control(f"protection.{part}.on", options["title"], choices=_ON_OFF) if part else None
    return Group(controls=[*own, *others], more=more, switch=switch, **options)


def unplaced(
    errors: Mapping[str, Sequence[str]], found: Sequence[Group], *, beside: Sequence[str]
) -> list[str]:
    """Errors of fields that the groups do not have. ``beside`` are fields that the page shows beside them."""
    controls = [one for group in found for one in (*group.controls, *group.more)]
    controls += [group.switch for group in found if group.switch]
    shown = {text for one in controls for text in one.errors}
    others = (texts for name, texts in errors.items() if name not in beside)
    return [text for texts in others for text in texts if text not in shown]
