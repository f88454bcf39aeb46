"""Prints the seconds that dramatiq takes to enqueue jobs, and to finish them."""

import sys
import threading
from time import perf_counter

import dramatiq
from dramatiq.brokers.redis import RedisBroker


def main(url: str, jobs: int) -> None:
    broker = RedisBroker(url=url)
    dramatiq.set_broker(broker)
    left, guard, done = jobs, threading.Lock(), threading.Event()

    @dramatiq.actor
    def job(number: str) -> None:
        nonlocal left
        with guard:
            left -= 1
        if not left:
            done.set()

    began = perf_counter()
    for number in range(jobs):
        job.send(str(number))
    enqueued = perf_counter() - began
    worker = dramatiq.Worker(broker, worker_threads=8)
    began = perf_counter()
    worker.start()
    done.wait()
    finished = perf_counter() - began
    worker.stop()
    sys.stdout.write(f"{enqueued} {finished}\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
