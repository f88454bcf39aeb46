"""A process that works under a lock for ever: it writes to a resource that compares fences.

usage: python -m tests.agents.lock_process REDIS_URL TTL_S
"""

import contextlib
import os
import sys
import time

import redis

from fuseboard import AgentSettings, LockLost, LockTaken, blocking

#: KEYS 1 the highest number so far; 2 what was written. ARGV 1 the number; 2 the writer. Returns 1 or 0
RESOURCE = """
local last = tonumber(redis.call('GET', KEYS[1]) or '0')
local fence = tonumber(ARGV[1])
redis.call('RPUSH', KEYS[2], (fence >= last and 'written ' or 'refused ') .. ARGV[1] .. ' ' .. ARGV[2])
if fence < last then return 0 end
redis.call('SET', KEYS[1], ARGV[1])
return 1
"""


def main(url: str, ttl_s: float) -> None:
    agent = blocking.Agent(settings=AgentSettings(redis_url=url, server=f"pod-{os.getpid()}"))
    with redis.Redis.from_url(url) as client, agent:
        while True:
            with contextlib.suppress(LockTaken, LockLost), agent.lock("report", ttl_s=ttl_s) as lock:
                client.set("holder", os.getpid())
                for _ in range(3):
                    lock.check()
                    time.sleep(0.02)  # work, in which the test stops this process
                    client.eval(RESOURCE, 2, "resource", "writes", lock.fence, os.getpid())


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
