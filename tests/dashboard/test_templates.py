"""What the content security policy forbids must not be in templates or scripts in the first place."""

import re
from pathlib import Path

import pytest
from django.template import Context, Template

from controlplane.validation import LONGEST_REASON, SHORTEST_REASON, Problems
from dashboard import forms

DASHBOARD = Path(__file__).resolve().parents[2] / "dashboard"
TEMPLATES = sorted((DASHBOARD / "templates").rglob("*.html"))
FORBIDDEN = {
    "inline style": re.compile(r"\sstyle\s*=", re.IGNORECASE),
    "style element": re.compile(r"<style\b", re.IGNORECASE),
    "inline handler": re.compile(r"\son[a-z]+\s*=\s*[\"']", re.IGNORECASE),
    "inline script": re.compile(r"<script(?![^>]*\bsrc=)", re.IGNORECASE),
    "hx-on": re.compile(r"hx-on\b", re.IGNORECASE),
    "computed values": re.compile(r"[\"']js:|\bjavascript:", re.IGNORECASE),
    "trigger filter": re.compile(r"hx-trigger=\"[^\"]*\["),
    "unescaped text": re.compile(r"\|\s*safe\b|autoescape off"),
}


@pytest.mark.parametrize("what", FORBIDDEN)
@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_no_template_needs_what_the_content_policy_forbids(template, what):
    assert not FORBIDDEN[what].search(template.read_text())


def test_plots_need_no_inline_style_either():
    source = (DASHBOARD / "plots.py").read_text() + (DASHBOARD / "live" / "timeline.py").read_text()
    assert "style=" not in source


@pytest.mark.parametrize("script", ["app.js", "forms.js", "palette.js"])
def test_the_script_builds_no_markup_and_no_code_from_text(script):
    script = (DASHBOARD / "static" / "dashboard" / script).read_text()
    for word in ("innerHTML", "insertAdjacentHTML", "outerHTML =", "eval(", "new Function", "document.write"):
        assert word not in script


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_a_preview_is_of_what_was_chosen_last(template):
    """Otherwise htmx drops a change while one request is on the way and another one waits."""
    previews = re.findall(r'<[^<>]*hx-trigger="[^"]* from:#[^<>]*>', template.read_text())
    assert all('hx-sync="this:replace"' in preview for preview in previews)


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_every_form_that_posts_carries_a_token(template):
    forms = re.findall(r"<form[^>]*method=\"post\".*?</form>", template.read_text(), re.DOTALL)
    assert all("{% csrf_token %}" in form for form in forms)


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_every_form_that_posts_leaves_errors_to_the_server(template):
    """The bubble of a browser goes away, is in its own language, and does not say what to do."""
    opened = re.findall(r"<form\b(?:\{%.*?%\}|\{\{.*?\}\}|[^>])*>", template.read_text(), re.DOTALL)
    assert all(" novalidate" in form for form in opened if 'method="post"' in form)


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_no_template_draws_a_reason_field(template):
    """``{% reason_field %}`` draws it, with the length that ``controlplane.validation`` decides."""
    fields = re.findall(r"<(?:input|textarea)[^>]*\sname=\"reason\"[^>]*", template.read_text())
    assert all('type="hidden"' in field for field in fields)


def test_a_reason_has_one_length_everywhere():
    most = f'maxlength="{LONGEST_REASON}"'
    drawn = Template("{% reason_field %}").render(Context())
    assert f'<p class="hint" id="f-reason_hint">at least {SHORTEST_REASON} characters</p>' in drawn
    assert 'aria-describedby="f-reason_hint"' in drawn
    assert most in drawn
    optional = Template("{% reason_field required=False %}").render(Context())
    assert "at least" not in optional
    assert most in optional
    field = forms.ReasonField()
    assert (field.min_length, field.max_length) == (SHORTEST_REASON, LONGEST_REASON)
    problems = Problems()
    problems.reason("short")
    assert field.error_messages["min_length"] == problems.errors["reason"][0]
    page = (DASHBOARD.parent / "docs" / "api.md").read_text()
    assert f"**reason** of {SHORTEST_REASON} characters or more" in page
