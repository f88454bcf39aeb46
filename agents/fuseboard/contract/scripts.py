"""The Lua scripts of the agent, one ``Script`` each. Pods call them by hash, or by name as functions.

The control plane loads the functions for pods whose Redis user may not load scripts.
"""

import re
from hashlib import sha1
from pkgutil import get_data

from msgspec import Struct

#: How every script reads the time. Tests replace this with virtual time, and change nothing else.
CLOCK = "local time = redis.call('TIME')\nlocal now = time[1] * 1000000 + time[2]\n"
#: A line that inserts a part of a script. Parts may insert parts.
_INSERT = re.compile(r"^ *-- insert (\w+)\n", re.MULTILINE)


class Script(Struct, frozen=True):
    name: str
    text: str
    #: SHA-1 in hexadecimal. Redis knows a loaded script by it.
    sha: str

    @property
    def function(self) -> str:
        """The name of the function, and of its library. It contains a part of the hash, so the functions of
        two versions of the agent exist beside each other.
        """
        return f"fuseboard_{self.name}_{self.sha[:16]}"

    @property
    def library(self) -> str:
        """The text for ``FUNCTION LOAD``. The function gets KEYS and ARGV, and replies as the script does."""
        name, body = self.function, self.text.removeprefix("#!lua\n")
        return f"#!lua name={name}\nredis.register_function('{name}', function(KEYS, ARGV)\n{body}\nend)\n"

    def words(self, *, function: bool) -> tuple[str, str]:
        """The words that call the script; keys and arguments follow."""
        return ("FCALL", self.function) if function else ("EVALSHA", self.sha)

    def command(self, *, function: bool) -> bytes:
        """The command in wire format."""
        return b"".join(
            b"$%d\r\n%b\r\n" % (len(word), word.encode()) for word in self.words(function=function)
        )


def read_script(name: str, *, clock: str = CLOCK) -> Script:
    """Load ``lua/<name>.lua`` with its parts inserted."""
    text = _read(f"{name}.lua")
    if text.count(CLOCK) != 1:
        raise ValueError(f"lua/{name}.lua must read the time exactly once, as contract/scripts.py spells it")
    while _INSERT.search(text):
        text = _INSERT.sub(lambda part: _read(f"parts/{part[1]}.lua"), text)
    text = text.replace(CLOCK, clock)
    return Script(name=name, text=text, sha=sha1(text.encode(), usedforsecurity=False).hexdigest())


def _read(file: str) -> str:
    # importlib.resources loads archives and temporary files, 1 MB in each process.
    data = get_data("fuseboard", f"lua/{file}")
    if data is None:
        raise FileNotFoundError(f"this installation of fuseboard cannot read lua/{file}")
    return data.decode()


ACCOUNT_STOP = read_script("account_stop")
ADMIT = read_script("admit")
DRAIN = read_script("drain")
IDEMPOTENCY = read_script("idempotency")
LEARN = read_script("learn")
LOCK = read_script("lock")
REPORT = read_script("report")
RESTORE = read_script("restore")
SETTLE = read_script("settle")

BACKLOG_SUBMIT = read_script("backlog_submit")
BACKLOG_TAKE = read_script("backlog_take")
BACKLOG_KEEP = read_script("backlog_keep")
BACKLOG_END = read_script("backlog_end")
BACKLOG_CHANGE = read_script("backlog_change")
BACKLOG_LOOK = read_script("backlog_look")
BACKLOG = (BACKLOG_SUBMIT, BACKLOG_TAKE, BACKLOG_KEEP, BACKLOG_END, BACKLOG_CHANGE, BACKLOG_LOOK)

#: All that a pod calls.
SCRIPTS = (ADMIT, REPORT, SETTLE, LEARN, DRAIN, RESTORE, ACCOUNT_STOP, LOCK, IDEMPOTENCY, *BACKLOG)
