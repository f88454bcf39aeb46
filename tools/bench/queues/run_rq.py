"""Prints the seconds that rq takes to enqueue jobs, and to finish them."""

import sys
from time import perf_counter

from redis import Redis
from rq import Queue, SimpleWorker

from tools.bench.queues.rq_job import run


def main(url: str, jobs: int) -> None:
    with Redis.from_url(url) as client:
        queue = Queue(connection=client)
        # Of an earlier round.
        before = queue.finished_job_registry.count
        began = perf_counter()
        for number in range(jobs):
            queue.enqueue(run, str(number))
        enqueued = perf_counter() - began
        worker = SimpleWorker([queue], connection=client)
        began = perf_counter()
        worker.work(burst=True, logging_level="ERROR")
        finished = perf_counter() - began
        if (done := queue.finished_job_registry.count - before) != jobs:
            raise SystemExit(f"{done} of {jobs} jobs were finished")
    sys.stdout.write(f"{enqueued} {finished}\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
