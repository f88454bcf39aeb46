"""The scripts that pods of earlier versions run on the same keys, from the history."""

import re
import subprocess
from functools import cache
from hashlib import sha1

from fuseboard.contract.scripts import CLOCK, Script
from tests.agents.scripts import VIRTUAL_CLOCK
from tests.contract.compat.release import FIRST, LAST, ROOT, need_history

#: Version 0.1.0, and the last commit whose scripts cannot read what another algorithm has counted. Each of
#: their calls occupies one slot, and a pause that one of their pods reports needs no second witness.
OLD_COMMITS = {f"v{FIRST}": FIRST.commit, "before 0.2": "239105b8ed6740466b6e62067c335968fd9f19e7"}
#: Those, and the last release, whose scripts do what the present ones do.
EARLIER_COMMITS = {**OLD_COMMITS, f"v{LAST}": LAST.commit}

_INSERT = re.compile(r"^ *-- insert (\w+)\n", re.MULTILINE)


@cache
def old_script(version: str, name: str) -> Script:
    """A script of an earlier version, in virtual time."""
    commit = EARLIER_COMMITS[version]
    need_history(commit)
    folder = "agents/fuseboard/lua/"
    listed = _git("ls-tree", "-r", "--name-only", commit, folder).split()
    files = {path.rpartition("/")[2].removesuffix(".lua"): path for path in listed}
    text = _git("show", f"{commit}:{files[name]}")
    while _INSERT.search(text):
        text = _INSERT.sub(lambda part: _git("show", f"{commit}:{files[part[1]]}"), text)
    assert text.count(CLOCK) == 1
    text = text.replace(CLOCK, VIRTUAL_CLOCK)
    return Script(name=name, text=text, sha=sha1(text.encode(), usedforsecurity=False).hexdigest())


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout
