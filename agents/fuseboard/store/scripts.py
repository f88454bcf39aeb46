"""Loads the Lua scripts from ``lua/``, one ``Script`` each."""

import re
from dataclasses import dataclass
from hashlib import sha1
from importlib.resources import files

#: How every script reads the time. Tests replace this with virtual time, and change nothing else.
CLOCK = "local time = redis.call('TIME')\nlocal now = time[1] * 1000000 + time[2]\n"
#: A line that inserts a part of a script. Parts may insert parts.
_INSERT = re.compile(r"^ *-- insert (\w+)\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    name: str
    text: str
    #: SHA-1 in hexadecimal. Redis knows a loaded script by it.
    sha: str

    @property
    def command(self) -> bytes:
        """The words that call the script, in wire format; keys and arguments follow."""
        return b"$7\r\nEVALSHA\r\n$40\r\n%b\r\n" % self.sha.encode()


def read_script(name: str, *, clock: str = CLOCK) -> Script:
    """Load ``lua/<name>.lua`` with its parts inserted."""
    folder = files("fuseboard") / "lua"
    text = (folder / f"{name}.lua").read_text()
    if text.count(CLOCK) != 1:
        raise ValueError(f"lua/{name}.lua must read the time exactly once, as store/scripts.py spells it")
    while _INSERT.search(text):
        text = _INSERT.sub(lambda part: (folder / "parts" / f"{part[1]}.lua").read_text(), text)
    text = text.replace(CLOCK, clock)
    return Script(name=name, text=text, sha=sha1(text.encode(), usedforsecurity=False).hexdigest())


ADMIT = read_script("admit")
DRAIN = read_script("drain")
REPORT = read_script("report")
SETTLE = read_script("settle")
