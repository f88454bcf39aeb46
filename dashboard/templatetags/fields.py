"""Attributes of form fields that the edit functions decide; a builtin library of every template."""

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString

from controlplane.validation import LONGEST_REASON, SHORTEST_REASON

register = template.Library()


@register.simple_tag
def reason_length(optional: bool = False) -> SafeString:
    """The length of a reason: ``<textarea name="reason" required {% reason_length %}>``.

    An optional one may be shorter: the edit function decides, by what the button does.
    """
    most = format_html('maxlength="{}"', LONGEST_REASON)
    return most if optional else format_html('minlength="{}" {}', SHORTEST_REASON, most)
