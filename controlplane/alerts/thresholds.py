"""Where a figure becomes an alert. Those of pods and breakers are in ``controlplane.status``."""

#: Share of requests answered 429: above the first it is more than one greedy tenant, above the second
#: many callers are refused.
REFUSED_SHARE = 0.005
REFUSED_SHARE_CRITICAL = 0.02
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
