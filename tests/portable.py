"""Exceptions that pools of processes, job engines and result stores send between processes."""

import concurrent.futures
import copy
import importlib
import inspect
import multiprocessing
import pickle
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any


def import_all(package: str) -> None:
    """Import every module of ``package``, apart from those that need a library which is not here."""
    top = importlib.import_module(package)
    for found in pkgutil.walk_packages(top.__path__, f"{package}."):
        if found.name.endswith("__main__") or ".migrations." in found.name:
            continue
        try:
            importlib.import_module(found.name)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] == package:
                raise


def exceptions_of(package: str) -> list[type[BaseException]]:
    """Every exception class of the imported modules of ``package``."""

    def below(kind: type[BaseException]) -> Iterator[type[BaseException]]:
        for one in kind.__subclasses__():
            yield one
            yield from below(one)

    found = {one for one in below(BaseException) if one.__module__.split(".")[0] == package}
    return sorted(found, key=lambda one: (one.__module__, one.__qualname__))


def example_of(kind: type[BaseException], examples: Mapping[str, Any]) -> BaseException:
    """An exception of this class. ``examples`` has a value for each argument, by name."""
    given: list[Any] = []
    named: dict[str, Any] = {}
    if inspect.isfunction(kind.__init__):
        for name, parameter in list(inspect.signature(kind.__init__).parameters.items())[1:]:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            assert name in examples, f"give an example of {name!r} of {kind.__module__}.{kind.__qualname__}"
            value = examples[name](kind) if callable(examples[name]) else examples[name]
            if parameter.kind is parameter.KEYWORD_ONLY:
                named[name] = value
            else:
                given.append(value)
    else:
        given.append("a test")
    return kind(*given, **named)


def pickled(error: BaseException) -> BaseException:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        error = pickle.loads(pickle.dumps(error, protocol))  # noqa: S301 - our own
    return error


def check_portable(error: BaseException) -> None:
    """``error`` keeps its class, text, arguments and notes when it is pickled or copied."""
    error.add_note("seen by a test")
    ways: dict[str, Callable[[BaseException], BaseException]] = {
        "copy": copy.copy,
        "deepcopy": copy.deepcopy,
        "pickled twice": lambda one: pickled(pickled(one)),
        "pickled": pickled,
    }
    for way, load in ways.items():
        loaded = load(error)
        assert type(loaded) is type(error), way
        assert str(loaded) == str(error), way
        assert loaded.__notes__ == ["seen by a test"], way
        assert set(vars(loaded)) >= set(vars(error)) - {"_request"}, way


def raise_it(error: BaseException) -> None:
    raise error


def check_pool(errors: list[BaseException]) -> None:
    """A pool of processes raises each of them here, and goes on."""
    # Forked, because the classes of a test exist only in this process.
    context = multiprocessing.get_context("fork")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        for error in errors:
            raised = pool.submit(raise_it, error).exception(30)
            assert type(raised) is type(error), (type(error), raised)
            assert str(raised) == str(error), error
        assert pool.submit(int, "7").result(30) == 7
