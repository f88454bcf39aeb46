"""Where a figure becomes an alert, unless an admin chose another value: see ``rule_settings``.

Those of pods and breakers are in ``controlplane.status``.
"""

from controlplane.status.servers import LAG_CRITICAL_S, LAG_WARN_S
from controlplane.usage.budgets import WARN_PERCENT

#: An alert about a figure that jumps ends only at this percentage of its threshold: a figure that moves
#: around the threshold makes one alert, not many.
CLEAR_PERCENT = 90
#: Share of requests answered 429: above the first it is more than one greedy tenant, above the second
#: many callers are refused.
REFUSED_SHARE = 0.005
REFUSED_SHARE_CRITICAL = 0.02
#: At most so many requests are too few for a share of them.
LEAST_REQUESTS_PER_S = 1.0
#: Redis p99 is critical above the fleet's ``store_deadline_us``, and a warning above this part of it:
#: 5 ms and 1 ms unless the tuning says otherwise.
P99_WARN_PART = 0.2
#: The warning needs this long above its part: an idle machine exceeds it for seconds, and nothing is wrong.
P99_WARN_LASTS_S = 60.0
#: Pods on local fallback: more than this number, or more than this share of the live pods, is critical.
LOCAL_PODS = 3
LOCAL_SHARE = 0.5
#: Share of pods missing from the rates above which it is more than pods that changed their gateway.
UNCOUNTED_SHARE = 0.1
#: A change this late is applied neither by the worker nor by a web process in its place.
OVERDUE_S = 30.0
#: Share of the live pods under pressure above which it is more than a few bad pods.
PRESSED_SHARE = 0.5
#: Share of the questions to Redis that fail: above the first it is more than noise, above the second the
#: fleet notices, and above the third a person on call must know. Below the rate, a single one would count.
FAILED_CHECKS_SHARE = 0.000_1
FAILED_CHECKS_SHARE_CRITICAL = 0.001
FAILED_CHECKS_MANY = 0.01
LEAST_CHECKS_PER_S = 10.0
#: Share of the capacity of a server of Redis: above it, answers become slow.
REDIS_OPS_SHARE = 0.8
REDIS_OPS_SHARE_CRITICAL = 0.9
#: The worker evaluates every 5 s. After this time without, it is down.
NOT_EVALUATED_S = 30.0
#: A pod that has not applied an edit for this time.
LAG_S = LAG_WARN_S
LAG_S_CRITICAL = LAG_CRITICAL_S
#: Share of the last hour in which a breaker was open: it opens again and again, or for long.
OPEN_SHARE = 0.1
OPEN_SHARE_CRITICAL = 0.5
#: Share of the calls that a vendor answers with 429, or with 401, 402 or 403. A few are noise.
VENDOR_SHARE = 0.01
VENDOR_SHARE_CRITICAL = 0.1
LEAST_VENDOR_ANSWERS = 5
#: Share of a quota, or of a budget, that is spent.
QUOTA_SHARE = WARN_PERCENT / 100
QUOTA_SHARE_CRITICAL = 1.0
#: Share of the calls to a dependency that pods refuse: above it, nearly none is allowed. Below the rate, one
#: refusal would count.
ALL_REFUSED_SHARE = 0.99
LEAST_REFUSED_PER_S = 0.1
#: Share of the places of a bulkhead's queue in which calls wait.
QUEUE_SHARE = 0.8
#: Share of the bound of a backlog, in jobs or bytes. A full one refuses jobs.
BACKLOG_SHARE = 0.8
BACKLOG_SHARE_CRITICAL = 0.99
#: For how long a job is ready while no worker asks: an idle worker asks about once per second.
BACKLOG_UNTAKEN_S = 60.0
#: For how long a lock is held: blocks take seconds, and those of a job some minutes.
LOCK_HELD_S = 300.0
#: Share of locks, and of claims of work that must not be done twice, that fail because Redis cannot be asked.
LOCK_FAILURES_SHARE = 0.01
LOCK_FAILURES_SHARE_CRITICAL = 0.1
#: Share of the requests that pods shed.
SHED_SHARE = 0.01
SHED_SHARE_CRITICAL = 0.1
#: Times its usual hour that a tenant sends, and the rate below which no tenant runs away.
RUNAWAY_TIMES = 10.0
LEAST_RUNAWAY_PER_S = 5.0
#: Refusals of one caller in 10 minutes, estimated from samples, and the samples below which that is a guess.
CALLER_REFUSALS = 600.0
LEAST_CALLER_SAMPLES = 5
#: The oldest edit that is not published.
OUTBOX_S = 10.0
OUTBOX_CRITICAL_S = 60.0
#: The oldest audit entry that a target of the export lacks. Between two attempts are at most 5 minutes.
AUDIT_EXPORT_S = 600.0
AUDIT_EXPORT_CRITICAL_S = 3_600.0
#: Servers of Redis that are degraded: more than this number is critical.
REDIS_NODES = 3
#: Days until a token or a certificate expires.
EXPIRY_DAYS = 21.0
EXPIRY_CRITICAL_DAYS = 5.0
