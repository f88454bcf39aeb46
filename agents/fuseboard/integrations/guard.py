"""``fuseboard.guard``: guard a client that exists, with all its settings.

A transport that is passed to httpx replaces the client's own, with its proxies, limits, TLS and HTTP/2. So
this module wraps the transports that the client has. httpx, httpx2 and the clients on top of them have no
public way to do that: this module, and no other, reads ``_transport`` and ``_mounts`` of a client of httpx,
and ``_client`` of a client of OpenAI or Anthropic. A client without them is refused, and loses no setting.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar, Unpack

from fuseboard.agent import Agent
from fuseboard.agent_api.arguments import check_name, check_transport_options
from fuseboard.agent_api.options import TransportOptions, list_options
from fuseboard.blocking import Agent as BlockingAgent
from fuseboard.errors import Misconfigured

C = TypeVar("C")

#: The packages whose clients are known by the name of a base class.
_HTTPX = ("httpx", "httpx2")
_MODELS = ("openai", "anthropic")

_UNKNOWN = (
    "guard() knows clients of httpx, httpx2, requests, OpenAI and Anthropic, not {kind}: "
    "use 'async with agent.call(name)' around each call"
)
_AIOHTTP = (
    "a session of aiohttp takes its middlewares when it is made: aiohttp.ClientSession("
    "middlewares=(fuseboard.integrations.aiohttp.GuardedMiddleware(agent, dependency=name),))"
)


@list_options()
def guard(
    client: C,
    agent: Agent | BlockingAgent,
    name: str = "",
    *,
    add_usage: bool = True,
    **options: Unpack[TransportOptions],
) -> C:
    """Guard every request of ``client`` as a call to the dependency ``name``, and return the client.

    The client is changed in place: it keeps its proxies, connection limits, TLS, HTTP/2 and timeouts, and a
    client made from it later is guarded too. Known are ``Client`` and ``AsyncClient`` of httpx and httpx2,
    ``Session`` of requests, and the clients of OpenAI and Anthropic. A client on an event loop needs an
    agent on it, and a blocking client one of ``fuseboard.blocking``.

    The clients of OpenAI and Anthropic repeat requests themselves, also refused ones. ``guard`` sets their
    ``max_retries`` to 0. If it was more, ``retry`` and ``idempotent`` are on, so that the retry policy and
    the retry budget of the dependency decide instead. A client with other options (``with_options``) repeats
    nothing either. Their calls reserve the tokens that limits count, and
    are settled by the usage in the answer, as those of ``fuseboard.llm``. There, ``name`` may be left out.
    Then a request belongs to the pool of its model (``gpt-5.2``), if the policy has the model and it has one,
    and else to the dependency with the name of its host (``api.openai.com``). Without a ``tenant``, a call is
    charged to that of the request that is served, or of ``fuseboard.tenant``. ``tenant`` may be a function.
    ``add_usage=False`` is for a server of models that refuses ``stream_options``.

    Raises ``Misconfigured`` for another client, for an agent of the other kind, and for a client that is
    guarded already.
    """
    check_transport_options("guard", options)
    package, kind = _kind(client)
    if name or package not in _MODELS:
        check_name("a dependency", name)
    if package in _MODELS:
        _guard_model_client(package, client, agent, name, add_usage, options)
    elif package in _HTTPX:
        _guard_httpx_client(package, kind, client, agent, name, options)
    elif package == "requests":
        _wrap_session(client, agent, name, options)
    else:
        raise Misconfigured(_AIOHTTP if package == "aiohttp" else _UNKNOWN.format(kind=type(client).__name__))
    return client


def _kind(client: object) -> tuple[str, str]:
    """The package and the class of a known client; empty for another. Imports nothing."""
    known = {
        "Client": _HTTPX,
        "AsyncClient": _HTTPX,
        "Session": ("requests",),
        "ClientSession": ("aiohttp",),
        "SyncAPIClient": _MODELS,
        "AsyncAPIClient": _MODELS,
    }
    for base in type(client).__mro__:
        package = base.__module__.partition(".")[0]
        if package in known.get(base.__name__, ()):
            return package, base.__name__
    return "", ""


def _guard_httpx_client(
    package: str, kind: str, client: Any, agent: Agent | BlockingAgent, name: str, options: TransportOptions
) -> None:
    asynchronous = kind == "AsyncClient"
    check_agent(agent, asynchronous)
    module = import_module(f"fuseboard.integrations.{package}")
    guarded = module.GuardedTransport if asynchronous else module.BlockingGuardedTransport
    _wrap_httpx(
        package, client, lambda one: guarded(agent, dependency=name, transport=one, **options), asynchronous
    )


def _guard_model_client(
    package: str,
    client: Any,
    agent: Agent | BlockingAgent,
    name: str,
    add_usage: bool,
    options: TransportOptions,
) -> None:
    inner, repeats = _read(client, "_client"), _read(client, "max_retries")
    library, kind = _kind(inner)
    if library not in _HTTPX:
        raise Misconfigured(f"the http_client of this {type(client).__name__} is not a client of httpx")
    defaults: TransportOptions = {"retry": True, "idempotent": True} if repeats else {}
    asynchronous = kind == "AsyncClient"
    check_agent(agent, asynchronous)
    # Imported here: a service that calls no model loads nothing of it.
    module = import_module(f"fuseboard.llm.{library}")
    guarded = module.LlmTransport if asynchronous else module.BlockingLlmTransport
    errors = import_module(f"fuseboard.integrations.{package}")

    def wrap(transport: Any) -> Any:
        outer = guarded(
            agent, dependency=name, transport=transport, add_usage=add_usage, **{**defaults, **options}
        )
        outer._refused, outer._not_repeated = errors.CallRefused, errors.CallNotRepeated
        return outer

    _wrap_httpx(library, inner, wrap, asynchronous)
    client.max_retries = 0


def _wrap_httpx(package: str, client: Any, wrap: Callable[[Any], Any], asynchronous: bool) -> None:
    module = import_module(f"fuseboard.integrations.{package}")
    transport, mounts = _read(client, "_transport"), _read(client, "_mounts")
    guarded = module.GuardedTransport if asynchronous else module.BlockingGuardedTransport
    _refuse_guarded(guarded, transport, *mounts.values())
    made = _memoized(wrap)
    # A mount of None is a pattern that uses the transport of the client, such as NO_PROXY.
    wrapped = {pattern: one and made(one) for pattern, one in mounts.items()}
    client._transport, client._mounts = made(transport), wrapped


def _wrap_session(session: Any, agent: Any, name: str, options: TransportOptions) -> None:
    from fuseboard.integrations.requests import GuardedAdapter

    check_agent(agent, asynchronous=False)
    _refuse_guarded(GuardedAdapter, *session.adapters.values())
    made = _memoized(lambda one: GuardedAdapter(agent, dependency=name, adapter=one, **options))
    # The mount is replaced in place, because the order decides which adapter a URL gets.
    for prefix, adapter in session.adapters.items():
        session.adapters[prefix] = made(adapter)


def _memoized(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """One transport that is mounted twice is wrapped once, so that it is opened and closed once."""
    made: dict[int, Any] = {}

    def once(one: Any) -> Any:
        if id(one) not in made:
            made[id(one)] = make(one)
        return made[id(one)]

    return once


def check_agent(agent: object, asynchronous: bool) -> None:
    """Raise ``Misconfigured`` for an agent of the other kind."""
    if asynchronous and isinstance(agent, BlockingAgent):
        raise Misconfigured("a client on an event loop needs an agent on it: agent = fuseboard.from_env()")
    if not asynchronous and isinstance(agent, Agent):
        raise Misconfigured("a blocking client needs an agent of fuseboard.blocking.from_env()")


def _refuse_guarded(guarded: type, *transports: object) -> None:
    if any(isinstance(one, guarded) for one in transports):
        raise Misconfigured("this client is guarded already: each request would be admitted twice")


def _read(client: Any, attribute: str) -> Any:
    try:
        return getattr(client, attribute)
    except AttributeError:
        package = type(client).__module__.partition(".")[0]
        raise Misconfigured(
            f"this version of {package} has no {type(client).__name__}.{attribute}, so guard() cannot keep"
            " the settings of the client: pass a GuardedTransport that wraps your transport"
        ) from None
