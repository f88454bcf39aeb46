"""What the content security policy forbids must not be written in the first place."""

import re
from pathlib import Path

import pytest

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
def test_no_template_needs_what_the_policy_forbids(template, what):
    assert not FORBIDDEN[what].search(template.read_text())


def test_the_plots_need_no_style_either():
    source = (DASHBOARD / "plots.py").read_text() + (DASHBOARD / "live" / "timeline.py").read_text()
    assert "style=" not in source


def test_the_script_builds_no_markup_and_no_code_from_text():
    script = (DASHBOARD / "static" / "dashboard" / "app.js").read_text()
    for word in ("innerHTML", "insertAdjacentHTML", "outerHTML =", "eval(", "new Function", "document.write"):
        assert word not in script


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_every_form_that_posts_carries_a_token(template):
    forms = re.findall(r"<form[^>]*method=\"post\".*?</form>", template.read_text(), re.DOTALL)
    assert all("{% csrf_token %}" in form for form in forms)
