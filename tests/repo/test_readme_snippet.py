"""The five-minute example of the README, pasted as it is."""

import re
import shlex
import tomllib
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).resolve().parents[2]


#: ``pip install`` of the pages that say how to install the agent.
PAGES = ("README.md", "docs/integration.md")


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_installs_is_there_and_brings_what_its_code_imports(page):
    """In a checkout, as the page says. It named a folder that no checkout has, and left out fastapi."""
    text = (ROOT / page).read_text()
    (command,) = re.findall(r"^pip install (.*?)\s+#.*$", text, re.MULTILINE)
    project, *others = shlex.split(command)
    path, extras = re.fullmatch(r"([./\w]+)\[([\w,]+)\]", project).groups()
    declared = tomllib.loads((ROOT / path / "pyproject.toml").read_text())["project"]
    requirements = [*declared["dependencies"], *others]
    for extra in extras.split(","):
        requirements += declared["optional-dependencies"][extra]
    installed = {re.split(r"[^\w-]", each)[0] for each in requirements}
    first = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]
    imported = set(re.findall(r"^(?:import|from) (\w+)", first, re.MULTILINE))
    # starlette comes with fastapi.
    assert imported - {"os", "fuseboard", "starlette"} <= installed
    # The page says how to run it.
    assert "`shop.py`" in text
    assert "uvicorn shop:app" in text
    assert "uvicorn" in installed


async def test_the_service_of_the_readme_runs(monkeypatch, limits, redis_url):
    monkeypatch.setenv("FUSEBOARD_REDIS_URL", redis_url)
    monkeypatch.setenv("FUSEBOARD_STATE_DIR", "off")
    (snippet,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    service: dict = {}
    exec(compile(snippet, "README.md", "exec"), service)  # noqa: S102 - our own text
    async with service["agent"], service["payments"]:
        transport = httpx.ASGITransport(service["app"])
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            answer = await client.get("/openapi.json", headers={"x-tenant": "acme"})
    assert answer.status_code == 200
    assert "/orders" in answer.json()["paths"]
    assert service["agent"].defects == 0


def test_the_first_installation_is_into_an_environment_that_the_readme_makes() -> None:
    """Debian and others refuse to install into the Python of the system."""
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    block = next(block for block in blocks if "pip install" in block)
    assert re.search(r"^python3 -m venv (\S+) && \. \1/bin/activate$", block, re.MULTILINE)
    assert block.index("-m venv") < block.index("pip install")
