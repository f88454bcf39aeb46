"""Django and FastAPI send the token of a refusal, too: one for each answer, the same in header and body."""

import json

import httpx
from django.http import HttpResponse
from django.test import RequestFactory
from fastapi import Depends, FastAPI

from fuseboard.contract.refusal_token import read_token
from fuseboard.contract.words import Reason
from fuseboard.errors import Refused
from fuseboard.integrations.django import FuseboardMiddleware
from fuseboard.integrations.fastapi import answer_refused, limited
from tests.agents.test_integrations_asgi import FakeAgent, refused
from tests.agents.test_refusal_tokens import KEY, signed, signer

DECISION = signed(refused(Reason.QUOTA), signer())


def checked(headers, problem):
    text = headers["fuseboard-refusal"]
    assert problem["instance"] == f"urn:fuseboard:refusal:{text}"
    token = read_token(text)
    assert token.is_signed(KEY.key)
    assert token.is_tenant(KEY.key, "acme")


class DjangoAgent:
    def enter_request(self, *asked):
        return DECISION


def test_django_sends_the_token(settings):
    settings.FUSEBOARD = {"AGENT": DjangoAgent(), "TENANT": lambda request: "acme"}
    middleware = FuseboardMiddleware(lambda request: HttpResponse("never"))
    response = middleware(RequestFactory().get("/"))
    assert response.status_code == 429
    checked(response.headers, json.loads(response.content))
    # The same for a guarded call that a view did not handle.
    checked(
        (answer := middleware.process_exception(RequestFactory().get("/"), Refused(DECISION))).headers,
        json.loads(answer.content),
    )


async def asked(app):
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        return await client.get("/")


def application():
    app = FastAPI()

    @app.get("/", dependencies=[Depends(limited(FakeAgent(DECISION), tenant=lambda: "acme"))])
    async def never() -> str:
        return "never"

    return app


async def test_fastapi_sends_the_token_with_the_handler_and_without():
    response = await asked(application())
    assert response.status_code == 429
    checked(response.headers, response.json()["detail"])
    app = application()
    app.add_exception_handler(Refused, answer_refused)
    response = await asked(app)
    assert response.status_code == 429
    checked(response.headers, response.json())
