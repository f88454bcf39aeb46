"""Headers of every API response, and 304 for content that the client already has."""

from collections.abc import Callable
from hashlib import sha256

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.cache import get_conditional_response, patch_vary_headers

#: Headers that mark a repeated reply: ours, and the one that clients of Stripe look for.
REPLAYED = ("Idempotency-Replayed", "Idempotent-Replayed")


class ApiHeaders:
    """Middleware, below the one that turns errors into problem documents."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        response = self.get_response(request)
        if not request.path.startswith("/api/v1/"):
            return response
        allowance = getattr(request, "allowance", None)
        if allowance is not None:
            for name, value in allowance.headers().items():
                response.headers[name] = value
        if getattr(request, "replayed", False):
            for name in REPLAYED:
                response.headers[name] = "true"
        patch_vary_headers(response, ["Authorization", "Cookie"])
        if request.method != "GET" or response.status_code != 200 or not isinstance(response, HttpResponse):
            return response
        return _conditional(request, response)


def _conditional(request: HttpRequest, response: HttpResponse) -> HttpResponseBase:
    if "ETag" not in response.headers:
        response.headers["ETag"] = f'"{sha256(response.content).hexdigest()[:32]}"'
    # Stored by the client alone, and always revalidated.
    response.headers["Cache-Control"] = "private, no-cache"
    answer = get_conditional_response(request, etag=response.headers["ETag"], response=response)
    for name in ("RateLimit", "RateLimit-Policy"):
        if answer is not None and name in response.headers:
            answer.headers[name] = response.headers[name]
    return answer if answer is not None else response
