"""Calls to the API, as a program with a token makes them."""

import json
from datetime import timedelta
from typing import Any

from django.test import Client
from django.utils import timezone

from controlplane.accounts import tokens
from tests.people import ADA

API = "/api/v1/production"


def token_of(role: str, *, environment: str = "") -> str:
    return tokens.create_api_token(
        name=f"test {role}",
        role=role,
        environment=environment,
        expires_at=timezone.now() + timedelta(hours=1),
        reason="for a test",
        actor=ADA,
    )


def agent_token() -> str:
    return tokens.create_agent_token(
        environment="production",
        name="test pods",
        expires_at=timezone.now() + timedelta(hours=1),
        reason="for a test",
        actor=ADA,
    )


def send(token: str, method: str, path: str, body: Any = None, **headers: str) -> Any:
    """``body`` becomes JSON unless it is already text."""
    content = body if isinstance(body, str | bytes) else json.dumps(body)
    plan = isinstance(body, str) and path.partition("?")[0].endswith(("/plan", "/apply", "/what-if"))
    kind = headers.pop("Content-Type", "application/yaml" if plan else "application/json")
    return Client().generic(
        method,
        path,
        content if body is not None else "",
        content_type=kind,
        secure=True,
        headers={"Authorization": f"Bearer {token}", **headers},
    )


def problem(response: Any, status: int) -> dict[str, Any]:
    """The problem document, which the response must be."""
    assert response.status_code == status, response.content
    assert response["Content-Type"] == "application/problem+json"
    document: dict[str, Any] = response.json()
    assert {"type", "title", "status", "detail"} <= document.keys()
    assert document["status"] == status
    return document
