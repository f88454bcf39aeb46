"""Processes that work under a lock until their parent ends: they write to a resource that compares fences.

usage: python -m tests.agents.lock_process REDIS_URL TTL_S COUNT        prints the numbers of its children
"""

import contextlib
import os
import sys
import time

import redis

from fuseboard import AgentSettings, LockLost, LockTaken, StoreUnavailable, blocking

#: KEYS 1 the highest number so far; 2 what was written. ARGV 1 the number; 2 the writer. Returns 1 or 0
RESOURCE = """
local last = tonumber(redis.call('GET', KEYS[1]) or '0')
local fence = tonumber(ARGV[1])
redis.call('RPUSH', KEYS[2], (fence >= last and 'written ' or 'refused ') .. ARGV[1] .. ' ' .. ARGV[2])
if fence < last then return 0 end
redis.call('SET', KEYS[1], ARGV[1])
return 1
"""


def work(url: str, ttl_s: float, parent: int) -> None:
    #: On a busy machine, Redis answers late as well.
    usual = (LockTaken, LockLost, StoreUnavailable)
    agent = blocking.Agent(settings=AgentSettings(redis_url=url, server=f"pod-{os.getpid()}"))
    with redis.Redis.from_url(url) as client, agent:
        while os.getppid() == parent:
            with contextlib.suppress(*usual), agent.lock("report", ttl_s=ttl_s) as lock:
                client.set("holder", os.getpid())
                for _ in range(3):
                    lock.check()
                    time.sleep(0.02)  # work, in which the test stops this process
                    client.eval(RESOURCE, 2, "resource", "writes", lock.fence, os.getpid())


def main(url: str, ttl_s: float, count: int) -> None:
    children, parent = [], os.getpid()
    for _ in range(count):
        # Forked before any agent has begun: twelve interpreters would take longer to start than the test.
        child = os.fork()
        if child == 0:
            try:
                work(url, ttl_s, parent)
            finally:
                os._exit(0)
        children.append(child)
    sys.stdout.write(" ".join(map(str, children)) + "\n")
    sys.stdout.flush()
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
