"""An identity provider of a company: the real one in the folder ``openid``, as tests use it."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
from django.test import Client

ROOT = Path(__file__).resolve().parents[3]
CALLBACK = "/login/oidc/company/callback"


@dataclass
class Provider:
    url: str
    #: The claims about every person who logs in.
    person: dict[str, Any] = field(default_factory=dict)
    #: How the provider is broken: see ``tests.controlplane.accounts.openid.validator.arranged``.
    faults: dict[str, Any] = field(default_factory=dict)

    def authorize(self, where: str, *, person: str = "otto") -> dict[str, str]:
        """Opens the page of the provider as a person who is logged in there.

        Returns the parameters with which the provider sends the browser back.
        """
        with httpx.Client() as browser:
            # With escapes, so that a test can send half of a surrogate pair.
            browser.post(f"{self.url}/arrange", content=json.dumps({"claims": self.person, **self.faults}))
            answer = browser.get(where, headers={"X-Person": person})
        assert answer.status_code == 302, answer.text
        return parameters(answer.headers["Location"])

    def leave(self, browser: Client) -> str:
        """Presses the button on the login page; returns the address of the provider."""
        page = browser.get("/login?next=/servers").content.decode()
        link = re.search(r'href="(/login/oidc/company[^"]*)"', page)
        assert link is not None
        where: str = browser.get(link[1].replace("&amp;", "&"))["Location"]
        assert where.startswith(f"{self.url}/authorize/?")
        return where

    def log_in(self, browser: Client, **changed: str) -> Any:
        """From the button on the login page to the answer of the callback."""
        return browser.get(CALLBACK, self.authorize(self.leave(browser)) | changed)


def parameters(where: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(where).query).items()}


@contextmanager
def provider(folder: Path) -> Iterator[Provider]:
    command = [
        sys.executable,
        "-m",
        "tests.controlplane.accounts.openid",
        str(folder),
        f"http://testserver{CALLBACK}",
    ]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            url = process.stdout.readline().strip()
            assert url, "the provider did not start"
            yield Provider(url)
        finally:
            # Ends its standard input, and waits.
            process.communicate()
