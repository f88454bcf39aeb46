"""The listener of the sidecar: who may ask, and what is read."""

import asyncio
from pathlib import Path

import pytest

from fuseboard.errors import Misconfigured
from fuseboard.reporting.token import TokenSource
from fuseboard.serving.exchange import Request
from fuseboard.sidecar.access import LoopbackAccess, loopback_of, token_of
from tests.sidecar.peers import GET, HOST, post, served
from tests.waiting import eventually


class TestAccess:
    ACCESS = LoopbackAccess(TokenSource("secret"))

    def status(self, headers: dict[str, str]) -> int:
        refused = self.ACCESS.refuse(Request(method="POST", path="/", headers=headers, body=b""))
        return 200 if refused is None else refused.status

    @pytest.mark.parametrize("host", ["127.0.0.1:7480", "localhost", "LocalHost:1", "[::1]:7480"])
    @pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
    def test_the_application_may_ask(self, host: str, scheme: str) -> None:
        assert self.status({"host": host, "authorization": f"{scheme} secret"}) == 200

    @pytest.mark.parametrize(
        "host", ["", "evil.example:7480", "127.0.0.1.evil.example", "10.0.0.1", "localhost:x"]
    )
    def test_another_host_may_not(self, host: str) -> None:
        assert self.status({"host": host, "authorization": "Bearer secret"}) == 403

    @pytest.mark.parametrize("origin", ["http://127.0.0.1:7480", "null", ""])
    def test_a_browser_may_not(self, origin: str) -> None:
        headers = {"host": "localhost", "authorization": "Bearer secret", "origin": origin}
        assert self.status(headers) == 403

    @pytest.mark.parametrize("given", ["", "Bearer", "Bearer wrong", "Basic secret", "secret", "Bearer \xff"])
    def test_a_request_without_the_token_may_not(self, given: str) -> None:
        assert self.status({"host": "localhost", "authorization": given}) == 401

    def test_without_a_token_the_other_rules_stay(self) -> None:
        open_access = LoopbackAccess(None)
        request = Request(method="POST", path="/", headers={"host": "localhost"}, body=b"")
        assert open_access.refuse(request) is None
        refused = open_access.refuse(Request(method="POST", path="/", headers={"host": "x"}, body=b""))
        assert refused is not None

    def test_a_token_that_was_replaced_is_the_one_that_counts(self, tmp_path: Path) -> None:
        file = tmp_path / "token"
        file.write_text("first\n")
        source = token_of({"FUSEBOARD_SIDECAR_TOKEN_FILE": str(file)})
        assert source.current() == "first"
        (tmp_path / "next").write_text("second\n")
        (tmp_path / "next").replace(file)
        assert source.current() == "second"

    @pytest.mark.parametrize(
        "environ",
        [
            {},
            {"FUSEBOARD_SIDECAR_TOKEN": "a", "FUSEBOARD_SIDECAR_TOKEN_FILE": "b"},
            {"FUSEBOARD_SIDECAR_TOKEN": "two words"},
            {"FUSEBOARD_SIDECAR_TOKEN_FILE": "/nowhere/at/all"},
        ],
    )
    def test_a_token_that_cannot_be_used_is_an_error_at_the_start(self, environ: dict[str, str]) -> None:
        with pytest.raises(Misconfigured, match="FUSEBOARD_SIDECAR_TOKEN"):
            token_of(environ)

    @pytest.mark.parametrize(
        "address",
        ["0.0.0.0:7480", "10.0.0.1:1", "127.0.0.2:1", "127.0.0.1:x", "example.com:80", ":7480", "7480"],
    )
    def test_only_loopback_is_listened_on(self, address: str) -> None:
        with pytest.raises(Misconfigured, match="--listen must be"):
            loopback_of(address)

    def test_loopback_has_three_spellings(self) -> None:
        assert loopback_of("localhost:1") == loopback_of("127.0.0.1:1") == ("127.0.0.1", 1)
        assert loopback_of("[::1]:7480") == loopback_of("[0:0:0:0:0:0:0:1]:7480") == ("::1", 7480)


class TestRequests:
    async def test_a_connection_serves_one_request_after_the_other(self) -> None:
        async with served() as one:
            peer = await one.peer()
            for _ in range(3):
                assert await peer.ask(post(b"{}", "/x")) == (
                    200,
                    {"content-type": "application/json", "content-length": "20"},
                    b'["POST", "/x", "{}"]',
                )
            assert len(one.connections) == 1

    async def test_requests_that_come_together_are_answered_in_their_order(self) -> None:
        async with served() as one:
            peer = await one.peer()
            peer.writer.write(post(b"", "/wait") + post(b"", "/soon") + post(b"a") + post(b"b"))
            await eventually(lambda: one.echo.asked)
            one.echo.go.set()
            assert [(await peer.answer())[2] for _ in range(4)] == [
                b'"waited"',
                b'"soon"',
                b'["POST", "/", "a"]',
                b'["POST", "/", "b"]',
            ]

    async def test_a_chunked_body_is_read(self) -> None:
        async with served() as one:
            peer = await one.peer()
            chunks = (
                b"POST / HTTP/1.1\r\n"
                + HOST
                + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n1\r\nd\r\n0\r\n\r\n"
            )
            assert (await peer.ask(chunks))[2] == b'["POST", "/", "abcd"]'

    async def test_a_client_that_expects_to_be_asked_for_its_body_is_asked(self) -> None:
        async with served() as one:
            peer = await one.peer()
            head, _, body = post(b"abc", "/", "Expect: 100-continue").partition(b"\r\n\r\n")
            assert (await peer.ask(head + b"\r\n\r\n"))[0] == 100
            assert (await peer.ask(body))[2] == b'["POST", "/", "abc"]'

    async def test_a_client_is_not_asked_for_its_body_before_the_answer_to_its_last_request(self) -> None:
        async with served() as one:
            peer = await one.peer()
            peer.writer.write(post(b"", "/wait") + post(b"abc", "/", "Expect: 100-continue"))
            await eventually(lambda: one.echo.asked)
            one.echo.go.set()
            assert (await peer.answer())[::2] == (200, b'"waited"')
            assert (await peer.answer())[::2] == (200, b'["POST", "/", "abc"]')

    async def test_spaces_around_a_header_are_no_part_of_it(self) -> None:
        async with served() as one:
            peer = await one.peer()
            assert (await peer.ask(GET.replace(b"7480", b"7480 \t")))[0] == 200
            assert one.echo.asked[0].headers["host"] == "127.0.0.1:7480"

    async def test_a_client_that_offers_http2_goes_on_with_http1(self) -> None:
        async with served() as one:
            peer = await one.peer()
            upgrade = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")
            for _ in range(2):
                assert (await peer.ask(post(b"a", "/", *upgrade)))[2] == b'["POST", "/", "a"]'
            # Its body is no other request, however it comes.
            hidden = post(GET, "/", *upgrade)
            peer.writer.write(hidden[:-5])
            await asyncio.sleep(0)
            assert (await peer.ask(hidden[-5:] + post(b"", "/", *upgrade)))[2].startswith(
                b'["POST", "/", "GET'
            )
            assert (await peer.answer())[2] == b'["POST", "/", ""]'
            # Nor with a space that a header may have at its end.
            spaced = hidden.replace(b"\r\n\r\n", b" \r\n\r\n", 1)
            assert (await peer.ask(spaced))[2].startswith(b'["POST", "/", "GET')
            assert (await peer.ask(post(b"end")))[2] == b'["POST", "/", "end"]'
            assert len(one.echo.asked) == 6
            assert one.echo.asked[-1].headers["content-length"] == "3"

    async def test_a_client_that_closes_gets_its_answer_and_the_end(self) -> None:
        async with served() as one:
            peer = await one.peer()
            status, headers, _ = await peer.ask(post(b"", "/", "Connection: close"))
            assert (status, headers["connection"]) == (200, "close")
            assert await peer.is_closed()

    async def test_a_client_that_sends_more_after_its_last_request_gets_its_answer(self) -> None:
        last = post(b"", "/wait", "Connection: close")
        async with served() as one:
            for more in (post(b"more"), b"no request", b"\r\n"):
                peer = await one.peer()
                one.echo.asked.clear()
                one.echo.go.clear()
                peer.writer.write(last + more)
                await eventually(lambda: one.echo.asked)
                one.echo.go.set()
                assert (await peer.answer())[2] == b'"waited"'
                assert await peer.is_closed()
                assert len(one.echo.asked) == 1

    @pytest.mark.parametrize("headers", [(), ("Connection: keep-alive",)])
    async def test_a_client_of_http_1_0_gets_its_answer_and_the_end(self, headers: tuple[str, ...]) -> None:
        async with served() as one:
            for _ in range(2):
                peer = await one.peer()
                old = post(b"a", "/", *headers).replace(b"HTTP/1.1", b"HTTP/1.0")
                status, answered, body = await peer.ask(old)
                assert (status, answered["connection"], body) == (200, "close", b'["POST", "/", "a"]')
                assert await peer.is_closed()

    async def test_the_answer_to_head_has_no_body(self) -> None:
        async with served() as one:
            peer = await one.peer()
            peer.writer.write(GET.replace(b"GET", b"HEAD"))
            await peer.reader.readuntil(b"\r\n\r\n")
            assert (await peer.ask(GET))[0] == 200

    async def test_a_defect_is_500_and_the_connection_goes_on(self) -> None:
        async with served() as one:
            peer = await one.peer()
            assert (await peer.ask(post(b"", "/defect")))[0] == 500
            assert (await peer.ask(post(b"", "/later-defect")))[0] == 500
            assert (await peer.ask(GET))[0] == 200
