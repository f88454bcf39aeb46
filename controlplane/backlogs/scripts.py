"""The agent's scripts that the control plane runs on backlogs."""

from controlplane.redis.scripts import Script
from fuseboard.contract import keys
from fuseboard.contract.scripts import read_script

LOOK = Script(read_script("backlog_look").text)
DEAD = Script(read_script("backlog_dead").text)


def keys_of(environment: str, dependency: str) -> list[str]:
    return [keys.backlog(environment, dependency, part) for part in keys.BACKLOG_PARTS]
