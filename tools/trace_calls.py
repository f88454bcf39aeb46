"""Count the calls of our code that each request of a test makes.

    .venv/bin/python tools/trace_calls.py tests/controlplane/api/test_api.py -k set_and_read_back
    .venv/bin/python tools/trace_calls.py --list PUT tests/controlplane/api/test_api.py -k set_and_read_back

All other options go to pytest. Each request of Django's test client prints one line: its calls, functions
and files in ``agents/fuseboard``, ``controlplane`` and ``dashboard``, how often the file changes from one
call to the next, and the greatest depth of these frames. ``--list METHOD`` also prints the calls of each file
for requests with this method. Only the thread of the test is traced. What a first import runs does not count.
"""

import sys
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from django.test import Client

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = tuple(f"{ROOT / part}/" for part in ("agents/fuseboard", "controlplane", "dashboard"))
_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")


class Trace:
    def __init__(self) -> None:
        self.calls: Counter[CodeType] = Counter()
        self.changes = self.deepest = self._imports = 0
        self._stack: list[CodeType] = []
        self._last = ""

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(PRODUCT):
            return
        if event == "return":
            if self._stack and self._stack[-1] is code:
                self._imports -= self._stack.pop().co_name == "<module>"
            return
        self._stack.append(code)
        self.deepest = max(self.deepest, len(self._stack))
        self._imports += code.co_name == "<module>"
        # A comprehension is part of its function. RESUME has an argument when a generator continues.
        continues = frame.f_lasti >= 0 and code.co_code[frame.f_lasti + 1]
        if self._imports or continues or code.co_name in _COMPREHENSIONS:
            return
        self.calls[code] += 1
        self.changes += code.co_filename != self._last
        self._last = code.co_filename

    def __str__(self) -> str:
        files = {code.co_filename for code in self.calls}
        return (
            f"{self.calls.total()} calls, {len(self.calls)} functions, {len(files)} files,"
            f" {self.changes} changes of file, {self.deepest} deep"
        )

    def by_file(self) -> str:
        lines = []
        calls: Counter[str] = Counter()
        for code, count in self.calls.items():
            calls[code.co_filename] += count
        for file, total in calls.most_common():
            lines.append(f"{total:6} {Path(file).relative_to(ROOT)}")
            of_file = [
                (count, code.co_qualname) for code, count in self.calls.items() if code.co_filename == file
            ]
            lines += [f"{count:14} {name}" for count, name in sorted(of_file, reverse=True)]
        return "\n".join(lines)


class Plugin:
    def __init__(self, listed: str) -> None:
        self._listed = listed

    @pytest.fixture(autouse=True)
    def _traced(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        request, listed = Client.request, self._listed

        def traced(client: Client, **environ: Any) -> Any:
            trace = Trace()
            sys.setprofile(trace)
            try:
                answer = request(client, **environ)
            finally:
                sys.setprofile(None)
            method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
            with capsys.disabled():
                sys.stdout.write(f"\n{method} {path} {answer.status_code}: {trace}\n")
                if method == listed:
                    sys.stdout.write(f"{trace.by_file()}\n")
            return answer

        monkeypatch.setattr(Client, "request", traced)


def main(arguments: list[str]) -> int:
    listed = ""
    if arguments[:1] == ["--list"]:
        listed, arguments = arguments[1].upper(), arguments[2:]
    return pytest.main(["-q", "-p", "no:cacheprovider", *arguments], plugins=[Plugin(listed)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
