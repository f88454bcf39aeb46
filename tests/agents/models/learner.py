"""``learn.lua`` on a real server, in virtual time."""

from dataclasses import dataclass, field
from typing import NamedTuple

import redis

from fuseboard.contract.scripts import Script, read_script
from tests.agents.models.learning_oracle import TICK_US
from tests.agents.scripts import START_US, VIRTUAL_CLOCK, run_script

KEY, SLOTS = "{d}:learned", "{d}:slots"


class Answer(NamedTuple):
    limit: int
    generation: int
    steps: int
    cause: int
    share: int
    lowest_us: int = 0
    present_us: int = 0


@dataclass
class Learner:
    client: redis.Redis
    ceiling: int = 600
    lowest: int = 60
    now_us: int = START_US
    #: The limit follows the time of calls, up to so many percent above the lowest one.
    rise: int = 0
    #: The counter of calls in progress.
    slots: str = SLOTS
    script: Script = field(default_factory=lambda: read_script("learn", clock=VIRTUAL_CLOCK))

    def report(
        self,
        server: str = "web-1",
        asked: int = 0,
        sent: int = 0,
        refused: int = 0,
        stated: int = 0,
        took: int = 0,
    ) -> Answer:
        seen = [server, asked, sent, refused, stated]
        arguments = [*seen, self.ceiling, self.lowest, TICK_US, took, self.rise, self.now_us]
        return Answer(*run_script(self.client, self.script, [KEY, self.slots], arguments))

    def tick(self) -> None:
        self.now_us += TICK_US
