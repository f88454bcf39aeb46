"""Bugs in the scripts of the backlog. ``script`` is the name after ``backlog_``."""

from tests.agents.models.mutant import Mutant

BACKLOG_MUTANTS = [
    Mutant("a cheap job overtakes", "take", "decide(keys, asked, true)", "decide(keys, asked, false)"),
    Mutant(
        "the groups are one class",
        "take",
        "add_group(from, heads[from].job, i - from)",
        "add_group(1, heads[from].job, i - from)",
    ),
    Mutant(
        "jobs of different costs are one group",
        "take",
        "local its = heads[i] and cmsgpack.pack(heads[i].job[JOB.costs])",
        "local its = heads[i] and costs",
    ),
    Mutant(
        "limits are numbered by name, not by use",
        "take",
        "keys[#keys + 1] = KEYS[first_limit + (n - 1) / 4]",
        "keys[#keys + 1] = KEYS[first_limit + #keys - 3]",
    ),
    Mutant(
        "a job stays ready",
        "take",
        "    redis.call('ZREM', READY, id)\n    redis.call('ZADD', LEASES, taken, id)",
        "    redis.call('ZADD', LEASES, taken, id)",
    ),
    Mutant(
        "a lease never ends",
        "take",
        "redis.call('ZRANGEBYSCORE', LEASES, '-inf', digits(now), 'LIMIT', '0', moved)",
        "redis.call('ZRANGEBYSCORE', LEASES, '-inf', digits(now - 60000000), 'LIMIT', '0', moved)",
    ),
    Mutant(
        "a lease ends one us late",
        "take",
        "redis.call('ZRANGEBYSCORE', LEASES, '-inf', digits(now), 'LIMIT', '0', moved)",
        "redis.call('ZRANGEBYSCORE', LEASES, '-inf', digits(now - 1), 'LIMIT', '0', moved)",
    ),
    Mutant(
        "a job is due one us late",
        "take",
        "redis.call('ZRANGEBYSCORE', DELAYED, '-inf', digits(now), 'LIMIT', '0', moved)",
        "redis.call('ZRANGEBYSCORE', DELAYED, '-inf', digits(now - 1), 'LIMIT', '0', moved)",
    ),
    Mutant("the slot of a dead worker stays taken", "take", "        free_slots(job)\n", ""),
    Mutant(
        "a job is tried for ever",
        "take",
        "job[JOB.tries] >= job[JOB.max_tries]",
        "job[JOB.tries] > job[JOB.max_tries]",
    ),
    Mutant("a try is not counted", "take", "job[JOB.tries] + 1, asked", "job[JOB.tries], asked"),
    Mutant("fences repeat", "take", "fence = math.max(fence + 1, now)", "fence = now"),
    Mutant("the fence is forgotten", "take", "    redis.call('HSET', STATS, 'fence', digits(fence))\n", ""),
    Mutant(
        "an expired job is handed out",
        "take",
        "job[JOB.deadline] <= now then",
        "job[JOB.deadline] < now then",
    ),
    Mutant(
        "an impossible job blocks the head", "take", "elseif not largest(job) then", "elseif not job then"
    ),
    Mutant(
        "a cancelled job of a dead worker runs again",
        "take",
        "if job[JOB.cancelled] == 1 then\n            finish",
        "if job[JOB.cancelled] == 2 then\n            finish",
    ),
    Mutant(
        "more jobs than were granted",
        "take",
        "for i = 1, granted do\n    local id, job = heads[i].id",
        "for i = 1, math.min(#heads, granted + 1) do\n    local id, job = heads[i].id",
    ),
    Mutant(
        "nothing is granted when a limit is scarce",
        "take",
        "granted = granted + figures[3 * i - 2]",
        "granted = granted",
    ),
    Mutant(
        "an open breaker hands out",
        "take",
        "local granted = 0",
        "local granted = verdict == 2 and #heads or 0",
    ),
    Mutant(
        "priority counts the wrong way",
        "submit",
        "local score, tag = sequence - priority * age, 0",
        "local score, tag = sequence + priority * age, 0",
    ),
    Mutant(
        "the last in is the first out",
        "submit",
        "local sequence = math.max(stat('sequence') + 1, now)",
        "local sequence = now - 2 * (now - 1790000000000000)",
    ),
    Mutant("a queue has one job too many", "submit", "if jobs >= max_jobs then", "if jobs > max_jobs then"),
    Mutant("bytes are not bounded", "submit", "bytes + #payload > max_bytes", "bytes > max_bytes"),
    Mutant(
        "the same id twice",
        "submit",
        "if redis.call('HEXISTS', META, id) == 1 then return { KNOWN, now, jobs, bytes } end\n",
        "",
    ),
    Mutant(
        "a finished id runs again",
        "submit",
        "if redis.call('HEXISTS', RESULTS, id) == 1 then return { FINISHED, now, jobs, bytes } end\n",
        "",
    ),
    Mutant(
        "a delayed job is ready",
        "submit",
        "if delay > 0 then\n    redis.call('ZADD', DELAYED",
        "if delay > 1e15 then\n    redis.call('ZADD', DELAYED",
    ),
    Mutant("an old fence renews", "keep", "if job and job[JOB.fence] == asked[i + 1] then", "if job then"),
    Mutant("a worker is not notified", "keep", "answer = 1 + job[JOB.cancelled]", "answer = 1"),
    Mutant(
        "the slot is not renewed",
        "keep",
        "redis.pcall('ZADD', key, digits(now + slots[n + 1]), slot)",
        "redis.pcall('ZCARD', key)",
    ),
    Mutant(
        "an old fence ends a job",
        "end",
        "if not job or job[JOB.fence] ~= fence then return 0 end",
        "if not job then return 0 end",
    ),
    Mutant(
        "a slot stays taken",
        "end",
        "    for _, slot in ipairs(slots_of(job, measures[n])) do redis.pcall('ZREM', KEYS[n], slot) end\n",
        "",
    ),
    Mutant("giving back spends a try", "end", "    job[JOB.tries] = job[JOB.tries] - 1\n", ""),
    Mutant(
        "a last try is not the last",
        "end",
        "job[JOB.tries] < job[JOB.max_tries]",
        "job[JOB.tries] <= job[JOB.max_tries]",
    ),
    Mutant(
        "a retry is not delayed",
        "end",
        "    put_back(id, job, delay)\n    publish",
        "    put_back(id, job, 0)\n    publish",
    ),
    Mutant(
        "a cancelled job is tried again",
        "end",
        "elseif job[JOB.cancelled] == 1 then",
        "elseif job[JOB.cancelled] == 2 then",
    ),
    Mutant("a done job stays", "end", "    finish(id, job, 'done', ARGV[2], result_us)\n", ""),
    Mutant(
        "cancelling takes the job from its worker",
        "change",
        "if redis.call('ZSCORE', LEASES, id) then",
        "if redis.call('ZSCORE', READY, id) then",
    ),
    Mutant(
        "a revived job keeps its tries",
        "change",
        "job[JOB.tries], job[JOB.cause] = 0, ''",
        "job[JOB.cause] = ''",
    ),
    Mutant(
        "a revived job expires at once",
        "change",
        "job[JOB.deadline] <= now then job[JOB.deadline] = 0",
        "job[JOB.deadline] < now then job[JOB.deadline] = 0",
    ),
    Mutant(
        "a returned job has no deadline",
        "dead",
        "if job[JOB.deadline] <= now then job[JOB.deadline] = 0 end",
        "job[JOB.deadline] = 0",
    ),
    Mutant("the payload is never removed", "end", "    redis.call('HDEL', BODY, id)\n", ""),
    Mutant(
        "the bytes of a job stay counted", "end", "    if job then count('bytes', -job[JOB.bytes]) end\n", ""
    ),
    Mutant(
        "a job returns to the end of the queue",
        "end",
        "redis.call('ZADD', READY, digits(job[JOB.score]), id)",
        "redis.call('ZADD', READY, digits(now), id)",
    ),
    Mutant(
        "returned jobs exceed the bound of the queue",
        "dead",
        "jobs + changed >= max_jobs",
        "jobs + changed > max_jobs",
    ),
    Mutant(
        "a returned job keeps its tries",
        "dead",
        "job[JOB.tries], job[JOB.cause] = 0, ''",
        "job[JOB.cause] = ''",
    ),
    Mutant("a returned job stays dead", "dead", "    redis.call('ZREM', DEAD, id)\n", ""),
    Mutant(
        "jobs that died later are returned", "dead", "before > 0 and digits(before)", "before < 0 and '0'"
    ),
    Mutant(
        "a deleted job has no result",
        "dead",
        "finish(id, job, 'cancelled', '', result_us)",
        "remove(id, job)",
    ),
]
