"""The pages of the provider: those of the package, and one that arranges a test."""

import json
from collections.abc import Callable

from django.contrib.auth.models import AnonymousUser, User
from django.http import HttpRequest, HttpResponse
from django.urls import include, path

from tests.controlplane.accounts.openid.validator import arranged


def browser_of_a_person(
    answer: Callable[[HttpRequest], HttpResponse],
) -> Callable[[HttpRequest], HttpResponse]:
    """Logs in the person of the header ``X-Person``: these tests need no passwords."""

    def middleware(request: HttpRequest) -> HttpResponse:
        name = request.headers.get("X-Person", "")
        request.user = User.objects.get_or_create(username=name)[0] if name else AnonymousUser()
        response = answer(request)
        if request.path == "/token/" and arranged.get("no_id_token"):
            document = json.loads(response.content)
            del document["id_token"]
            response.content = json.dumps(document)
        return response

    return middleware


def arrange(request: HttpRequest) -> HttpResponse:
    arranged.clear()
    arranged.update(json.loads(request.body))
    return HttpResponse()


urlpatterns = [path("arrange", arrange), path("", include("oauth2_provider.urls"))]
