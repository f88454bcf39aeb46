"""The page Envoy in a browser: a loaded file is previewed while a person types, saved, and undone."""

from typing import Any

import pytest

from controlplane.editing import edits
from controlplane.policies.models import DescriptorFile
from tests.people import ADA

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

FILE = "domain: edge\ndescriptors:\n  - {key: tenant, means: tenant}\n"
LIMIT = "  - {key: path, rate_limit: {unit: hour, requests_per_unit: 10}}\n"


def test_a_file_is_loaded_previewed_saved_and_undone(page: Any, sign_in: Any, production: str) -> None:
    why = {"reason": "CHG-1 rules of the edge", "actor": ADA}
    edits.set_descriptors(environment=production, domain="edge", file=FILE, expected_version=0, **why)
    sign_in("ada")
    page.goto("/envoy")
    page.click("tbody >> text=edge")
    page.click("main a.btn[href^='/envoy/edit/']")
    # With its scripts: a file that is chosen earlier waits for the button.
    page.wait_for_url("**/envoy/edit/edge")
    # Choosing a file loads it. Nothing is saved.
    loaded = {"name": "limits.yaml", "mimeType": "application/yaml", "buffer": (FILE + LIMIT).encode()}
    page.set_input_files("#f-upload", loaded)
    page.wait_for_selector("#preview :text('Rules: 1 added')")
    assert page.input_value("#f-file") == FILE + LIMIT
    assert DescriptorFile.objects.get().version == 1
    # The preview follows what is typed.
    page.fill("#f-file", FILE + LIMIT.replace("hour", "year"))
    page.wait_for_selector("#preview :text('A limit cannot count by the year')")
    page.fill("#f-file", FILE + LIMIT.replace("hour", "day"))
    page.wait_for_selector("#preview :text('10 per day')")
    page.fill("[name=reason]", "CHG-2 a limit of each path")
    page.click("button[value=save]")
    page.wait_for_url("**/envoy/of/edge?saved=*")
    assert DescriptorFile.objects.get().file == FILE + LIMIT.replace("hour", "day")
    page.fill("#t-d", "path=/slow")
    page.click("button[value=try]")
    page.wait_for_selector("#try :text('10 of 10')")
    page.go_back()
    page.click("text=Undo")
    page.wait_for_function("!document.body.textContent.includes('10 per day')")
    assert DescriptorFile.objects.get().file == FILE
