"""The backlog of one dependency under everything that workers, clients, time and its breaker can do."""

from dataclasses import dataclass
from typing import Any

import redis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fuseboard.contract.policy import BreakerPolicy, Limit
from fuseboard.contract.scripts import Script
from fuseboard.contract.words import Algorithm
from tests.agents.backlog_scripts import SECOND, BacklogStore, Taken
from tests.agents.models.oracles import Bucket, Window

WINDOW = Limit(name="vendor", limit=10, window_ms=60_000, algorithm=Algorithm.SLIDING_WINDOW)
BUCKET = Limit(name="tokens", limit=60, window_ms=60_000, burst=9, measure="tokens")
SLOTS = Limit(name="slots", limit=6, window_ms=90_000, algorithm=Algorithm.CONCURRENCY)
PROBES = 2
MAX_JOBS, MAX_BYTES = 9, 200


@dataclass
class Job:
    number: int
    score: int
    max_tries: int
    costs: dict[str, int]
    payload: bytes
    deadline: int = 0
    tries: int = 0
    fence: int = 0
    token: str = ""
    cancelled: bool = False
    state: str = "ready"
    at: int = 0  # when it is due, when its lease ends, or when it died

    @property
    def id(self) -> str:
        return f"job-{self.number}"


def backlog_machine(client: redis.Redis, scripts: dict[str, Script]) -> type[RuleBasedStateMachine]:
    """Exact grants in exact order, and every accepted job in exactly one place."""

    class BacklogMachine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            client.flushall()
            policy = BreakerPolicy(probes=PROBES, probe_lease_ms=5_000, slow_start_ms=0)
            self.store = BacklogStore(
                client,
                [WINDOW, BUCKET, SLOTS],
                policy,
                scripts=scripts,
                max_jobs=MAX_JOBS,
                max_bytes=MAX_BYTES,
            )
            self.window, self.bucket = Window(WINDOW), Bucket(BUCKET)
            self.jobs: dict[str, Job] = {}
            self.ended: dict[str, str] = {}
            self.fences: list[tuple[str, int]] = []
            self.sequence = self.fence = self.submitted = 0
            self.breaker, self.until = "closed", 0
            self.permits: dict[str, int] = {}

        @property
        def now(self) -> int:
            return self.store.now_us

        def those(self, state: str) -> list[Job]:
            return [job for job in self.jobs.values() if job.state == state]

        # Time

        @initialize(offset=st.integers(0, 60 * SECOND))
        def begin(self, offset: int) -> None:
            self.store.now_us += offset

        @rule(us=st.one_of(st.integers(0, 3), st.integers(0, 40 * SECOND), st.just(61 * SECOND)))
        def time_passes(self, us: int) -> None:
            self.store.now_us += us

        @rule(delta=st.integers(-1, 1))
        def something_is_due(self, delta: int) -> None:
            due = [job.at for job in self.jobs.values() if job.state in ("delayed", "leases")]
            if due:
                self.store.now_us = max(self.now, min(due) + delta)

        # Clients

        @rule(
            priority=st.integers(1, 10),
            tokens=st.integers(0, 11),
            delay_s=st.sampled_from([0, 0, 0, 5]),
            deadline_s=st.sampled_from([0, 0, 0, 20, 40]),
            size=st.sampled_from([1, 1, 90]),
            max_tries=st.integers(1, 3),
        )
        def submit(
            self, priority: int, tokens: int, delay_s: int, deadline_s: int, size: int, max_tries: int
        ) -> None:
            before = self.store.contents()
            job = Job(self.submitted, 0, max_tries, {"calls": 1, "tokens": tokens}, b"p" * size)
            waiting = [one for one in self.jobs.values() if one.state != "dead"]
            expected = "accepted"
            if len(waiting) >= MAX_JOBS:
                expected = "many_jobs"
            elif sum(len(one.payload) for one in self.jobs.values()) + size > MAX_BYTES:
                expected = "many_bytes"
            answer = self.store.submit(
                job.id,
                payload=job.payload,
                priority=priority,
                delay_us=delay_s * SECOND,
                deadline_us=deadline_s * SECOND,
                max_tries=max_tries,
                costs=job.costs,
            )
            assert answer == expected
            if answer != "accepted":
                assert self.store.contents() == before
                return
            self.submitted += 1
            self.sequence = max(self.sequence + 1, self.now)
            job.score = self.sequence - priority * self.store.age_us
            job.deadline = self.now + deadline_s * SECOND if deadline_s else 0
            if delay_s:
                job.state, job.at = "delayed", self.now + delay_s * SECOND
            self.jobs[job.id] = job

        @precondition(lambda self: self.submitted)
        @rule(data=st.data())
        def submit_again(self, data: st.DataObject) -> None:
            before = self.store.contents()
            known = f"job-{data.draw(st.integers(0, self.submitted - 1))}"
            assert self.store.submit(known) == ("known" if known in self.jobs else "finished")
            assert self.store.contents() == before

        @precondition(lambda self: self.submitted)
        @rule(data=st.data())
        def cancel(self, data: st.DataObject) -> None:
            self.cancel_job(data.draw(st.integers(0, self.submitted - 1)))

        def cancel_job(self, number: int) -> None:
            known = f"job-{number}"
            job = self.jobs.get(known)
            answer = self.store.cancel(known)
            if job is None:
                assert answer == 0
            elif job.state == "leases":
                assert answer == 2
                job.cancelled = True
            else:
                assert answer == 1
                self.finish(job, "cancelled")

        @precondition(lambda self: self.those("dead"))
        @rule()
        def a_person_revives_a_dead_job(self) -> None:
            job = self.those("dead")[0]
            assert self.store.revive(job.id) == 1
            self.revive(job)

        @precondition(lambda self: self.those("dead"))
        @rule(most=st.integers(1, 3), past=st.booleans())
        def an_operator_returns_dead_jobs(self, most: int, past: bool) -> None:
            chosen = sorted(self.those("dead"), key=lambda job: (job.at, job.id))
            until = chosen[0].at if past else 0
            chosen = [job for job in chosen if not until or job.at <= until][:most]
            room = MAX_JOBS - len([job for job in self.jobs.values() if job.state != "dead"])
            changed, left, full, *_ = self.store.dead("return", most=most, until_us=until)
            fit = chosen[: max(0, room)]
            assert (changed, full) == (len(fit), int(len(fit) < len(chosen)))
            for job in fit:
                self.revive(job)
            assert left == len(self.those("dead"))

        @precondition(lambda self: self.those("dead"))
        @rule(most=st.integers(1, 3))
        def an_operator_deletes_dead_jobs(self, most: int) -> None:
            chosen = sorted(self.those("dead"), key=lambda job: (job.at, job.id))[:most]
            listed = [row[0].decode() for row in self.store.dead("list")[4]]
            assert listed == [job.id for job in sorted(self.those("dead"), key=lambda job: (job.at, job.id))]
            changed, left, full, *_ = self.store.dead("delete", most=most)
            assert (changed, full) == (len(chosen), 0)
            for job in chosen:
                self.finish(job, "cancelled")
            assert left == len(self.those("dead"))

        # Workers

        @rule(number=st.integers(1, 4), most=st.integers(1, 4), max_tries=st.integers(1, 2))
        def jobs_come_and_a_worker_asks(self, number: int, most: int, max_tries: int) -> None:
            """Both in one step: in most runs of Hypothesis, one of the two rules is switched off."""
            for _ in range(number):
                self.submit(priority=5, tokens=0, delay_s=0, deadline_s=0, size=1, max_tries=max_tries)
            self.take(most)

        @rule(most=st.integers(1, 8))
        def take(self, most: int) -> None:
            self.what_time_has_changed()
            heads = self.heads(most)
            rates, slots = self.rates(), self.slots()
            taken = self.store.take(most)
            assert taken.again or len(taken.jobs) < most
            granted = self.granted(heads, taken)
            assert taken.ids == [job.id for job in granted]
            if not heads:
                assert taken.verdict == -1
                assert self.rates() == rates
                # A lease that has ended gives its slot back. Every other slot stays as it is.
                leased = {job.token for job in self.those("leases")}
                assert self.slots() == {token: end for token, end in slots.items() if token in leased}
            for job, row in zip(granted, taken.jobs, strict=True):
                self.fence = max(self.fence + 1, self.now)
                job.tries, job.fence, job.token = job.tries + 1, self.fence, row["token"]
                job.state, job.at = "leases", self.now + self.store.lease_us
                assert (row["fence"], row["tries"], row["until"]) == (job.fence, job.tries, job.at)
                assert row["payload"] == job.payload
                self.fences.append((job.id, job.fence))
                if self.breaker == "half_open":
                    self.permits[job.token] = self.now + 5 * SECOND

        def rates(self) -> list[bytes | None]:
            return [client.dump(self.store.limit_key(limit)) for limit in (WINDOW, BUCKET)]

        def slots(self) -> dict[str, float]:
            found: Any = client.zrange(self.store.limit_key(SLOTS), 0, -1, withscores=True)
            return {token.decode(): end for token, end in found}

        def what_time_has_changed(self) -> None:
            for job in self.those("delayed"):
                if job.at <= self.now:
                    job.state = "ready"
            for job in self.those("leases"):
                if job.at <= self.now:
                    if job.cancelled:
                        self.finish(job, "cancelled")
                    elif job.tries >= job.max_tries:
                        job.state, job.fence, job.at = "dead", 0, self.now
                    else:
                        job.state, job.fence = "ready", 0

        def heads(self, most: int) -> list[Job]:
            heads = []
            for job in sorted(self.those("ready"), key=lambda job: (job.score, job.id))[:most]:
                if job.deadline and job.deadline <= self.now:
                    self.finish(job, "expired")
                elif job.costs["tokens"] > BUCKET.burst:
                    job.state, job.at = "dead", self.now
                else:
                    heads.append(job)
            return heads

        def granted(self, heads: list[Job], taken: Taken) -> list[Job]:
            """Those that the breaker and every limit admit, in order, up to the first that is refused."""
            most = len(heads)
            if self.breaker in ("forced_open", "open", "cooling") and self.until > self.now:
                most = 0
            elif self.breaker in ("open", "half_open"):
                self.permits = {token: until for token, until in self.permits.items() if until > self.now}
                most = min(most, PROBES - len(self.permits))
            admitted: list[Job] = []
            in_use = len(self.those("leases"))
            for job in heads[:most]:
                tokens = job.costs["tokens"]
                if self.window.room(self.now) < 1 or in_use + len(admitted) >= SLOTS.limit:
                    break
                if tokens and self.bucket.room(self.now) < tokens:
                    break
                self.window.spend(self.now, 1)
                if tokens:
                    self.bucket.spend(self.now, tokens)
                admitted.append(job)
            if self.breaker == "open" and self.until <= self.now and admitted:
                self.breaker = "half_open"
            if heads and len(admitted) < len(heads):
                # Every refusal has a wait, unless a slot is what is missing.
                assert taken.wait_us > 0
            return admitted

        @precondition(lambda self: self.fences)
        @rule(data=st.data(), how=st.sampled_from(["done", "retry", "dead", "release"]))
        def a_job_ends(self, data: st.DataObject, how: str) -> None:
            job_id, fence = data.draw(st.sampled_from(self.fences))
            job, before = self.jobs.get(job_id), self.store.contents()
            answer = self.store.end(job_id, fence, how, delay_us=2 * SECOND, result=b"result")
            if job is None or job.state != "leases" or job.fence != fence:
                assert answer == 0
                assert self.store.contents() == before
                return
            job.fence = 0
            if how == "done":
                assert answer == 1
                self.finish(job, "done")
            elif job.cancelled:
                assert answer == 4
                self.finish(job, "cancelled")
            elif how == "release":
                assert answer == 2
                job.tries, job.state = job.tries - 1, "ready"
            elif how == "retry" and job.tries < job.max_tries:
                assert answer == 2
                job.state, job.at = "delayed", self.now + 2 * SECOND
            else:
                assert answer == 3
                job.state, job.at = "dead", self.now

        @precondition(lambda self: self.fences)
        @rule(data=st.data())
        def a_lease_is_renewed(self, data: st.DataObject) -> None:
            job_id, fence = data.draw(st.sampled_from(self.fences))
            job, before = self.jobs.get(job_id), self.store.contents()
            (answer,) = self.store.keep((job_id, fence))
            if job is None or job.state != "leases" or job.fence != fence:
                assert answer == 0
                assert self.store.contents() == before
                return
            assert answer == 1 + job.cancelled
            job.at = self.now + self.store.lease_us
            assert self.slots()[job.token] == self.now + SLOTS.window_ms * 1000

        # The breaker

        @rule(seconds=st.integers(1, 30))
        def the_breaker_opens(self, seconds: int) -> None:
            self.breaker, self.until, self.permits = "open", self.now + seconds * SECOND, {}
            text = f"open {self.now} {self.until} {self.now} 1 0 consecutive"
            client.delete(self.store.guard[0], self.store.guard[2])
            client.set(self.store.guard[1], text)

        @rule(mode=st.sampled_from(["forced_open", "cooling"]), seconds=st.integers(1, 30))
        def it_is_stopped(self, mode: str, seconds: int) -> None:
            if self.breaker != "closed":
                return
            self.breaker, self.until = mode, self.now + seconds * SECOND
            if mode == "forced_open":
                client.set(self.store.guard[0], f"forced_open {self.until} 1")
            else:
                client.set(self.store.guard[2], self.until)

        @rule()
        def the_breaker_closes(self) -> None:
            self.breaker, self.permits = "closed", {}
            client.delete(*self.store.guard)

        def finish(self, job: Job, status: str) -> None:
            del self.jobs[job.id]
            self.ended[job.id] = status

        def revive(self, job: Job) -> None:
            job.state, job.tries = "ready", 0
            if job.deadline <= self.now:
                job.deadline = 0

        # What always holds

        @invariant()
        def every_job_is_in_exactly_one_place(self) -> None:
            for state in ("ready", "delayed", "leases", "dead"):
                expected = {
                    job.id: float(job.score if state == "ready" else job.at) for job in self.those(state)
                }
                assert self.store.ordered(state) == expected
            assert {name.decode() for name in self.store.hashed("meta")} == set(self.jobs)
            bodies = {name.decode(): body for name, body in self.store.hashed("body").items()}
            assert bodies == {job.id: job.payload for job in self.jobs.values()}
            results = {
                name.decode(): text.split(b" ")[0].decode()
                for name, text in self.store.hashed("results").items()
            }
            assert results.items() <= self.ended.items()
            assert int(self.store.hashed("stats").get(b"bytes", 0)) == sum(map(len, bodies.values()))

        @invariant()
        def every_lease_has_its_slot_and_no_other_job_has_one(self) -> None:
            slots = client.zcount(self.store.limit_key(SLOTS), f"({self.now}", "+inf")
            # A slot outlives an unrenewed lease by a minute, until a worker asks.
            longer = SLOTS.window_ms * 1000 - self.store.lease_us
            assert slots == len([job for job in self.those("leases") if job.at + longer > self.now])

    return BacklogMachine
