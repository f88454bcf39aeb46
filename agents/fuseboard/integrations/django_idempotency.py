"""Django middleware for the header ``Idempotency-Key``, for ASGI and WSGI servers.

::

    MIDDLEWARE = [..., "fuseboard.integrations.django_idempotency.IdempotencyMiddleware"]
    FUSEBOARD = {..., "IDEMPOTENCY": {"CALLER": "shop.api.caller_of", "KEEP_S": 86_400}}

``CALLER`` returns who asks with this request, as text, so that no client reads the answer of another;
``None`` leaves a request alone. The other options are the arguments of
``fuseboard.integrations.idempotency.Rules``, in capitals. Place it after the middleware that identifies the
caller. The agent is ``agent()`` of ``fuseboard.integrations.django``. Views find their run in
``request.idempotency``, with ``fence``; it is ``None`` for a request without protection.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.module_loading import import_string

from fuseboard.calling.waits import run_blocking
from fuseboard.errors import Misconfigured, StoreUnavailable
from fuseboard.integrations.django import Step, agent, blocking_step, response_of
from fuseboard.integrations.idempotency import MAX_BODY, Rules, request_of, too_long
from fuseboard.primitives.idempotency import Found, Request, Run


class IdempotencyMiddleware:
    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        options = dict(getattr(settings, "FUSEBOARD", {}).get("IDEMPOTENCY", {}))
        caller = options.pop("CALLER", None)
        if caller is None:
            raise ImproperlyConfigured(
                "FUSEBOARD['IDEMPOTENCY']['CALLER'] is not set: it returns who asks, as text, or None"
            )
        self._caller = import_string(caller) if isinstance(caller, str) else caller
        try:
            self._rules = Rules(**{name.lower(): value for name, value in options.items()})
        except (Misconfigured, TypeError) as error:
            raise ImproperlyConfigured(f"FUSEBOARD['IDEMPOTENCY']: {error}") from None
        self._agent = agent()
        self._asynchronous = iscoroutinefunction(get_response)
        if self._asynchronous:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        if self._asynchronous:
            # Reading the body may block, and CALLER may ask the database: on the thread whose connections
            # Django closes.
            ask = sync_to_async(self._asked)
            # The first question starts the agent, which blocks.
            return self._serve(
                request, ask, lambda asked: asyncio.to_thread(self._find, asked), _settled, self.get_response
            )
        steps: tuple[Callable[..., Any], ...] = (self._asked, self._find, Future.result, self.get_response)
        response: HttpResponseBase = run_blocking(self._serve(request, *map(blocking_step, steps)))
        return response

    async def _serve(
        self, request: HttpRequest, ask: Step, find: Step, wait: Step, respond: Step
    ) -> HttpResponseBase:
        asked = await ask(request)
        if isinstance(asked, HttpResponse):
            return asked
        if asked is None:
            response: HttpResponseBase = await respond(request)
            return response
        finding = await find(asked)
        try:
            found = await wait(finding)
        except StoreUnavailable as error:
            found = error
        except BaseException:
            self._take_back(finding)
            raise
        refused = self._refused(request, found)
        if refused is not None:
            return refused
        try:
            response = await respond(request)
        except Exception:
            self._end(request, lambda run: run.release())
            raise
        except BaseException:
            self._leave(request)
            raise
        ending = self._ending(request, response)
        if ending is not None:
            await wait(self._agent.idempotency.thread.submit(ending))
        return response

    def _asked(self, request: HttpRequest) -> Request | HttpResponse | None:
        request.idempotency = None  # type: ignore[attr-defined] # for views
        header = request.META.get("HTTP_IDEMPOTENCY_KEY")
        # Servers join several headers with a comma, which no key of ours has a reason to contain.
        values = [] if header is None else header.split(",")
        key = self._rules.key(request.method or "", values)
        caller = self._caller(request) if key is not None else None
        if caller is None or key is None:
            return None
        if not isinstance(key, str):
            return response_of(key)
        length = request.META.get("CONTENT_LENGTH") or "0"
        if length.isdecimal() and int(length) > MAX_BODY:
            return response_of(too_long())
        body = request.body
        if len(body) > MAX_BODY:
            return response_of(too_long())
        return request_of(
            caller=caller,
            method=request.method or "",
            path=request.path,
            key=key,
            query=request.META.get("QUERY_STRING", "").encode(),
            content_type=request.META.get("CONTENT_TYPE", ""),
            body=body,
        )

    def _find(self, asked: Request) -> Future[Found]:
        return self._agent.idempotency.submit(asked, self._rules.lease_s, self._rules.keep_s)

    def _take_back(self, finding: Future[Found]) -> None:
        """The request is interrupted before it began."""
        if not finding.cancel() and finding.exception() is None:
            self._agent.idempotency.undo(finding.result())

    def _refused(self, request: HttpRequest, found: Found | StoreUnavailable) -> HttpResponse | None:
        if isinstance(found, StoreUnavailable):
            answer = self._rules.unavailable(found)
            return response_of(answer) if answer is not None else None
        request.idempotency = found.run  # type: ignore[attr-defined]
        return response_of(self._rules.answer_of(found)) if found.run is None else None

    def _ending(self, request: HttpRequest, response: HttpResponseBase) -> Coroutine[Any, Any, object] | None:
        """How the request ends now; ``None`` for a stream, which ends later."""
        run: Run | None = request.idempotency  # type: ignore[attr-defined]
        if run is None:
            return None
        if not self._rules.ends(response.status_code):
            return run.release()
        if response.streaming:
            self._follow(request, response)
            return None
        content = response.content if isinstance(response, HttpResponse) else None
        return run.done(self._rules.kept(response.status_code, response.items(), content))

    def _follow(self, request: HttpRequest, response: Any) -> None:
        """A stream is done, without its body, when all of it is sent. A broken one stays running."""

        def whole() -> None:
            self._end(request, lambda run: run.done(b""))

        stream = response.streaming_content
        response.streaming_content = (
            _whole_async(stream, whole) if response.is_async else _whole(stream, whole)
        )
        close = response.close

        def close_and_leave() -> None:
            try:
                close()
            finally:
                self._leave(request)

        response.close = close_and_leave

    def _end(self, request: HttpRequest, how: Callable[[Run], Coroutine[Any, Any, object]]) -> None:
        run: Run | None = request.idempotency  # type: ignore[attr-defined]
        if run is not None:
            self._agent.idempotency.thread.submit(how(run))

    def _leave(self, request: HttpRequest) -> None:
        run: Run | None = request.idempotency  # type: ignore[attr-defined]
        if run is not None:
            self._agent.idempotency.thread.call(run.leave)


async def _settled(future: Future[Any]) -> Any:
    """Wait on the event loop. Shielded: an answer is stored to its end, also if the client leaves."""
    return await asyncio.shield(asyncio.wrap_future(future))


def _whole(stream: Any, whole: Callable[[], None]) -> Iterator[bytes]:
    yield from stream
    whole()


async def _whole_async(stream: Any, whole: Callable[[], None]) -> AsyncIterator[bytes]:
    async for part in stream:
        yield part
    whole()
