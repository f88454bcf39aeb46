"""Numbers that a rule shares with pages, texts, or Prometheus."""

#: Share of requests answered 429: above the first it is more than one greedy tenant, above the second
#: many callers are refused.
REFUSED_SHARE = 0.005
REFUSED_SHARE_CRITICAL = 0.02
#: At most so many requests are too few for a share of them.
MIN_REQUESTS_PER_S = 1.0
#: Redis p99 is critical above the fleet's ``store_deadline_us``, and a warning above this part of it:
#: 5 ms and 1 ms unless the tuning says otherwise.
P99_WARN_PART = 0.2
#: Pods on local fallback: more than this share of the live pods is critical.
LOCAL_SHARE = 0.5
#: Share of pods missing from the rates above which it is more than pods that changed their gateway.
UNCOUNTED_SHARE = 0.1
#: Below this rate of requests to Redis, a single failure would count.
MIN_CHECKS_PER_S = 10.0
#: The worker evaluates every 5 s. After this time without, it is down.
NOT_EVALUATED_S = 30.0
#: Below this rate of refused calls to a dependency, one refusal would count.
MIN_REFUSED_PER_S = 0.1
#: Share of the bound of a backlog, in jobs or bytes. A full one refuses jobs.
BACKLOG_SHARE = 0.8
#: Part of the permits of a sidecar that end without a report: an application that stops loses a few.
UNREPORTED_SHARE = 0.05
#: A lock is held for longer than this: blocks take seconds, and those of a job some minutes.
LOCK_HELD_S = 300.0
