"""No text of a heartbeat stops a gateway from writing, and none reaches Postgres or a page as it is.

The texts are found in the types of the contract, so that a new field is tested too.
"""

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connection
from django.test import Client
from msgspec import inspect
from msgspec import json as msgspec_json

from controlplane.gateway.process import Gateway
from controlplane.gateway.wire.texts import cleaned, is_suspect
from fuseboard.contract.sync import MAX_BODY_BYTES, SyncRequest, decode_request, encode
from fuseboard.contract.words import UNREADABLE
from tests.controlplane.calling import API, send, token_of
from tests.controlplane.gateway.manual_gateway import beat, post, ready_gateway
from tests.people import create_person
from tests.waiting import eventually

#: As they stand in JSON. An agent may escape, or not.
BAD = {
    "NUL": "a\\u0000b",
    "line break": "a\\nb",
    "U+0085 escaped": "a\\u0085b",
    "U+0085": "a\u0085b",
    "DEL": "a\x7fb",
    "U+2028 escaped": "a\\u2028b",
    "U+2028": "a\u2028b",
    "direction": "a\u202eb",
    "half of a pair": "a\\ud800b",
    "10,000 characters": "x" * 10_000,
}
SAMPLE, BAD_HERE = "abcdef12", "<the text>"
UNREADABLE_TEXT = re.compile(f"[{UNREADABLE}]")


def sample(kind: inspect.Type, *, largest: bool = False) -> Any:
    """A valid value with everything in it; with ``largest``, its numbers are as large as they can be."""
    of = partial(sample, largest=largest)
    match kind:
        case inspect.StrType(pattern=pattern):
            return "" if pattern else SAMPLE
        case inspect.IntType(ge=least, le=most, lt=below):
            return max(7, least or 0) if not largest else most if below is None else below - 1
        case inspect.FloatType():
            return 7.0
        case inspect.BoolType():
            return False
        case inspect.EnumType(cls=words):
            return next(iter(words)).value
        case inspect.VarTupleType(item_type=item):
            return [of(item)]
        case inspect.DictType(key_type=key, value_type=value):
            return {of(key): of(value)}
        case inspect.UnionType(types=types):
            return of(next(one for one in types if not isinstance(one, inspect.NoneType)))
        case inspect.StructType(fields=fields, array_like=listed):
            values = {field.encode_name: of(field.type) for field in fields}
            return list(values.values()) if listed else values
    raise NotImplementedError(kind)


def texts(kind: inspect.Type) -> Iterator[tuple[str, inspect.StrType, Callable[[], Any]]]:
    """Every text in a type: its path, its bounds, and a function that makes a value with `BAD_HERE` there."""
    match kind:
        case inspect.StrType():
            yield "", kind, lambda: BAD_HERE
        case inspect.VarTupleType(item_type=item):
            for path, text, made in texts(item):
                yield f"[0]{path}", text, lambda made=made: [made()]
        case inspect.DictType(key_type=key, value_type=value):
            for path, text, made in texts(key):
                yield f" key{path}", text, lambda made=made: {made(): sample(value)}
            for path, text, made in texts(value):
                yield f" value{path}", text, lambda made=made: {sample(key): made()}
        case inspect.UnionType(types=types):
            for one in types:
                yield from texts(one)
        case inspect.StructType(fields=fields, array_like=listed):
            for at, field in enumerate(fields):
                for path, text, made in texts(field.type):

                    def whole(
                        at: int = at, name: str = field.encode_name, made: Callable[[], Any] = made
                    ) -> Any:
                        values = sample(kind)
                        values[at if listed else name] = made()
                        return values

                    yield f".{field.encode_name}{path}", text, whole


HEARTBEAT = inspect.type_info(SyncRequest)
TEXTS = list(texts(HEARTBEAT))


def bodies(made: Callable[[], Any], path: str, place: int) -> Iterator[bytes]:
    """A heartbeat with each bad text at this place, of a pod that has just started."""
    usual = {"environment": "production", "service": "checkout", "server": f"pod-{place}"}
    usual |= {"up_ms": 5_000, "cut": 0}
    for number, bad in enumerate(BAD.values()):
        document = made()
        document |= {name: value for name, value in usual.items() if document[name] != BAD_HERE}
        document["sequence"] = number
        yield json.dumps(document).replace(BAD_HERE, bad).encode()


def test_the_walk_finds_the_texts_that_once_stopped_a_gateway() -> None:
    paths = {path for path, *_ in TEXTS}
    assert {".boot", ".counters.rules[0].rule", ".counters.tenants[0].rules[0].rule", ".zone"} <= paths
    assert {".refusals[0].tenant", ".failures[0].kinds key", ".tally.tenants[0].tenant"} <= paths
    assert len(paths) > 30


def test_every_text_is_bounded() -> None:
    unbounded = [path for path, text, _ in TEXTS if text.max_length is None and text.pattern is None]
    assert not unbounded
    assert max(text.max_length or 0 for _, text, _ in TEXTS) <= 500


async def test_no_bad_text_anywhere_reaches_postgres_or_a_page(gateway: Gateway, call: Any) -> None:
    answers: dict[str, set[int]] = {}
    for place, (path, _, made) in enumerate(TEXTS):
        for body in bodies(made, path, place):
            assert len(body) < MAX_BODY_BYTES
            answers.setdefault(path, set()).add((await post(gateway, body)).status_code)
    assert {status for found in answers.values() for status in found} <= {200, 400, 403, 422}
    # Names are refused, except those that only a page displays.
    for name in (".server", ".service", ".boot", ".breakers[0].dependency", ".failures[0].dependency"):
        assert 200 not in answers[name], name
    for text in (".zone", ".mode_cause", ".agent_version", ".applied.error", ".load.cause"):
        assert 200 in answers[text], text
    flushed = gateway.counts.flushes
    await eventually(lambda: gateway.counts.flushes > flushed + 3)
    await gateway.stop()
    assert not gateway.counts.refused_writes.total
    assert gateway.counts.flush_failures == gateway.counts.series_failures == 0
    stored = await sync_to_async(stored_texts)()
    assert f"pod-{len(TEXTS) - 1}" in stored
    assert not UNREADABLE_TEXT.search(stored)
    assert "x" * 501 not in stored
    client = await sync_to_async(browser)()
    for page in ("/servers", "/tenants", "/breakers", "/refusals", "/"):
        assert not UNREADABLE_TEXT.search((await sync_to_async(page_of)(client, page)).translate(BREAKS)), (
            page
        )
    for path in ("servers", "fleet", "refusals"):
        found = await sync_to_async(call)("viewer", "GET", f"{API}/{path}")
        assert found.status_code == 200
        assert not UNREADABLE_TEXT.search(found.content.decode()), path
        assert not re.search(r"\\u00[0189]|\\u202|\\n", found.content.decode()), path


async def test_the_largest_numbers_stop_no_writer(gateway: Gateway) -> None:
    usual = {"environment": "production", "server": "pod-1", "up_ms": 5_000, "cut": 0}
    for sequence, largest in ((1, False), (2, True)):
        body = json.dumps(sample(HEARTBEAT, largest=largest) | usual | {"sequence": sequence})
        assert (await post(gateway, body.encode())).status_code == 200
        flushed = gateway.counts.flushes
        await eventually(lambda flushed=flushed: gateway.counts.flushes > flushed + 1)
    await gateway.stop()
    assert not gateway.counts.refused_writes.total
    assert gateway.counts.flush_failures == gateway.counts.series_failures == 0
    assert "pod-1" in await sync_to_async(stored_texts)()


BREAKS = str.maketrans("", "", "\t\n\r")


def stored_texts() -> str:
    """Everything that a gateway writes, as text."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
            " AND tablename ~ '^(fleet|series|shares|refusals)_'"
        )
        names = [name for (name,) in cursor.fetchall()]
        found = []
        for name in names:
            cursor.execute(f'SELECT row_to_json(one)::text FROM "{name}" AS one')  # noqa: S608 - from the catalogue
            found += [json.dumps(json.loads(text), ensure_ascii=False) for (text,) in cursor.fetchall()]
    return " ".join(found)


def browser() -> Client:
    client = Client()
    client.force_login(create_person("ada"))
    return client


def page_of(client: Client, path: str) -> str:
    answer = client.get(path, secure=True)
    assert answer.status_code == 200, (path, answer.status_code)
    return answer.content.decode()


@pytest.mark.parametrize("name", BAD)
def test_a_body_with_an_unreadable_character_is_always_suspected(name: str) -> None:
    body = f'{{"zone":"{BAD[name]}"}}'.encode()
    odd = name not in ("10,000 characters",)
    assert is_suspect(body) is odd


def test_usual_bodies_are_not_suspected() -> None:
    for text in (
        "plain",
        'a "quote"',
        "C:\\\\path",
        "caf\u00e9",
        "\u65e5\u672c",
        "\U0001f600",
        "a / b",
        "\u00a0",
    ):
        assert not is_suspect(encode(beat(zone=text))), text
    assert not is_suspect(encode(beat(mode_cause="connection refused: 10.0.0.1:6379")))


def test_cleaning_keeps_what_is_readable_and_the_length() -> None:
    whole = decode_request(msgspec_json.encode(sample(HEARTBEAT)))
    assert cleaned(whole) is whole
    odd = beat(zone="a\x00b", mode_cause="line\nline", agent_version="\x7f1", want=("\u65e5\u672c",))
    clean = cleaned(odd)
    assert (clean.zone, clean.mode_cause, clean.agent_version) == ("a b", "line line", " 1")
    assert clean.want == odd.want


async def test_a_pod_with_an_odd_text_keeps_its_heartbeat_and_what_it_asks_for() -> None:
    """An old agent may send an error with a line break, and a tenant may have an odd id."""
    gateway = ready_gateway()
    answer = await post(gateway, beat(mode_cause="refused\n(111)", zone="eu\u2028", want=("ac\u2028me",)))
    assert answer.status_code == 200
    assert "ac\u2028me" in answer.json()["tenants"]
    kept = gateway.fleets["production"].servers["pod-1"].beat
    assert (kept.mode_cause, kept.zone) == ("refused (111)", "eu ")


@pytest.mark.parametrize("boot", ["\x00bootboot", "aaaa\x00bbbb", "boot boot", "<b>boot</b>"])
async def test_a_boot_that_no_agent_makes_is_refused(boot: str) -> None:
    answer = await post(ready_gateway(), beat(boot=boot))
    assert (answer.status_code, answer.json()["field"]) == (422, "boot")


def test_texts_of_one_line_have_no_line_break(production: str) -> None:
    token = token_of("admin")
    made = {"key": "new", "tier": "free", "title": "two\nlines", "reason": "one line\nand another one"}
    refused = send(token, "POST", f"{API}/tenants", made)
    assert refused.status_code == 422
    assert "line breaks" in refused.content.decode()
    assert send(token, "POST", f"{API}/tenants", made | {"title": "one line"}).status_code in (200, 201)
    for bad in ("\u2028", "\u2029", "\u0085", "\u202e"):
        for field in ("title", "reason", "key"):
            changed = made | {"title": "one line", field: f"some text{bad}and more"}
            assert send(token, "POST", f"{API}/tenants", changed).status_code == 422, (field, bad)
