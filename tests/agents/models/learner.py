"""``learn.lua`` on a real server, in virtual time."""

from dataclasses import dataclass, field
from typing import NamedTuple

import redis

from fuseboard.contract.scripts import Script, read_script
from tests.agents.models.learning_oracle import TICK_US
from tests.agents.scripts import START_US, VIRTUAL_CLOCK, run_script

KEY = "{d}:learned"


class Answer(NamedTuple):
    limit: int
    generation: int
    steps: int
    cause: int
    share: int


@dataclass
class Learner:
    client: redis.Redis
    ceiling: int = 600
    lowest: int = 60
    now_us: int = START_US
    script: Script = field(default_factory=lambda: read_script("learn", clock=VIRTUAL_CLOCK))

    def report(
        self, server: str = "web-1", asked: int = 0, sent: int = 0, refused: int = 0, stated: int = 0
    ) -> Answer:
        arguments = [server, asked, sent, refused, stated, self.ceiling, self.lowest, TICK_US, self.now_us]
        return Answer(*run_script(self.client, self.script, [KEY], arguments))

    def tick(self) -> None:
        self.now_us += TICK_US
