"""Cases of the rules about the stores and the processes of the control plane, as in ``test_alert_rules``."""

from controlplane.audit_export.waiting import WaitingExport
from controlplane.fleet.live import FleetFigures
from controlplane.status.facts import Facts
from controlplane.status.watched import Blind, RedisServer, Source, Unreadable, Watched
from tests.controlplane.alerts.alert_facts import NOW, ONE_OF_TWO_LOCAL, facts, figures, pod, redis_answers

LOCAL = (pod(mode="local", mode_since=NOW - 60), pod("web-2", mode="local"))
APPROXIMATE = (
    "Limits are approximate: limits with a local share allow 1/{} of their value, and limits that fail open"
    " allow every call. Breakers work from each pod\u2019s own counters."
)
#: Of 1,000 pods, one or two are live.
SILENT = tuple(pod(f"silent-{n}", state="unknown", mode="local") for n in range(999))
ONE_DOWN = {"primaries": 1, "primaries_down": 1}
CHECKS = (
    "Of 1,000 requests/s to Redis, {} get no answer in time and {} get an error. Pods decide these"
    " calls locally."
)


def busy(ops_per_s: float, address: str = "10.0.0.1:6379") -> RedisServer:
    return RedisServer(address=address, ops_per_s=ops_per_s, capacity_ops=100_000)


def lacks(age_s: float, failures: int = 0) -> Facts:
    one = WaitingExport(
        target="webhook",
        entries=12,
        environment="production",
        sequence=81,
        at=NOW - age_s,
        failures=failures,
        problem="HTTP 422" if failures else "",
    )
    return facts(exports=(one,))


def blind(source: Source) -> Facts:
    return facts(blind=(Blind(source=source, since=NOW - 5, because="Redis does not answer"),))


def servers(*ill: RedisServer) -> Facts:
    return facts(redis_servers=(busy(89_000, "10.0.0.9:6379"), *ill))


SILENT_NODES = tuple(RedisServer(address=f"10.0.1.{n}:6379", answers=False) for n in range(2))
LATE = RedisServer(address="10.0.1.8:6379", role="replica", lag_s=11)
UNREADABLE = Unreadable(receivers=2, people=1)
WELL = RedisServer(address="10.0.1.8:6379", role="replica", lag_s=10, memory_share=0.9)
FULL_NODE = RedisServer(address="10.0.1.9:6379", memory_share=0.95)

STORE_CASES: list[tuple[tuple[str, str], Facts, str, Facts]] = [
    (
        ("all-local", "critical"),
        facts(*LOCAL),
        f"Every pod decides locally. {APPROXIMATE.format(2)}",
        ONE_OF_TWO_LOCAL,
    ),
    (
        ("audit-export", "critical"),
        lacks(3_601, failures=14),
        "The export of the audit is stuck: webhook. 12 entries wait, the oldest for 60 min: number 81 of"
        " production. 14 attempts in a row failed; the last one: HTTP 422.",
        lacks(3_600, failures=14),
    ),
    (
        ("audit-export", "warning"),
        lacks(601),
        "The export of the audit is stuck: webhook. 12 entries wait, the oldest for 10 min: number 81 of"
        " production. No attempt failed: no worker exports, or it exports more slowly than entries come.",
        lacks(600),
    ),
    (
        ("blind", "critical"),
        blind("redis"),
        "The servers of Redis cannot be read. Redis does not answer. Alerts of these rules keep their state:"
        " redis-node, redis-nodes, redis-ops.",
        blind("budgets"),
    ),
    (
        ("blind", "warning"),
        blind("budgets"),
        "What is spent of quotas and budgets cannot be read. Redis does not answer. Alerts of these rules"
        " keep their state: burn, quota.",
        blind("tokens"),
    ),
    (
        ("check-errors", "critical"),
        redis_answers(asked_per_s=1000, timeouts_per_s=1, errors_per_s=0.5),
        f"More requests to Redis fail than usual: 0.15 %. {CHECKS.format('1', '0.5')}",
        redis_answers(asked_per_s=1000, timeouts_per_s=1),
    ),
    (
        ("check-errors", "warning"),
        redis_answers(asked_per_s=1000, errors_per_s=0.2),
        f"More requests to Redis fail than usual: 0.02 %. {CHECKS.format('0', '0.2')}",
        redis_answers(asked_per_s=9, errors_per_s=9),
    ),
    (
        ("check-failures", "critical"),
        redis_answers(asked_per_s=1000, errors_per_s=20),
        f"2 % of requests to Redis fail. {CHECKS.format('0', '20')} More than 1 % is critical.",
        redis_answers(asked_per_s=1000, errors_per_s=10),
    ),
    (
        ("gateway-away", "critical"),
        figures(gateways=0),
        "No gateway reports. Pods decide as before. They get no edits, no process notices a silent pod, and"
        " alerts about pods keep their state.",
        facts(pod(state="offline"), figures=FleetFigures(gateways=0)),
    ),
    (
        ("lua-error", "critical"),
        facts(pod(mode="local", mode_cause="answers, but: ERR user_script:12: no field"), pod("web-2")),
        "A script fails in Redis, for web-1. web-1: answers, but: ERR user_script:12: no field. Pods decide"
        " these calls locally.",
        facts(
            pod(mode="local", mode_cause="5 failures in 10 s, last: timeout"),
            pod("web-2", state="offline", mode="local", mode_cause="answers, but: BUSY"),
            # It has come back.
            pod("web-3", mode="ramping", mode_cause="answers, but: BUSY"),
        ),
    ),
    (
        ("outbox", "critical"),
        facts(outbox_oldest_s=61),
        "An edit waits for 61 s. It is not in Redis yet. Pods get it from a gateway with their next"
        " heartbeat, but one that starts reads older limits.",
        facts(outbox_oldest_s=60),
    ),
    (
        ("outbox", "warning"),
        facts(outbox_oldest_s=11),
        "An edit waits for 11 s. It is not in Redis yet. Pods get it from a gateway with their next"
        " heartbeat, but one that starts reads older limits.",
        facts(outbox_oldest_s=10),
    ),
    (
        ("postgres-down", "critical"),
        facts(as_of=NOW - 4),
        "Postgres is unavailable. Pods decide as before. Edits are refused, and only alerts of level 3 are"
        " evaluated and sent.",
        facts(as_of=NOW - 3),
    ),
    (
        ("redis-down", "critical"),
        redis_answers(*LOCAL, pod("web-3"), primaries=3, primaries_down=1),
        "1 of 3 primaries of Redis are down. Gateways get no answer, and 2 of 3 pods decide locally."
        f" {APPROXIMATE.format(3)}",
        # Only one of two pods confirms it: the gateway may be cut off.
        redis_answers(pod(mode="local"), pod("web-2"), **ONE_DOWN),
    ),
    (
        ("redis-down", "critical"),
        redis_answers(pod(mode="local"), **ONE_DOWN),
        "Redis is down. Gateways get no answer, and 1 of 1 pod decide locally."
        f" {APPROXIMATE.replace('1/{} of their', 'their full').format()}",
        # No pod is live: the gateway lost the network to pods and to Redis.
        redis_answers(pod(state="unknown", mode="local"), pod("web-2", state="offline"), **ONE_DOWN),
    ),
    (
        ("redis-down", "critical"),
        redis_answers(*LOCAL, *SILENT, **ONE_DOWN),
        f"Redis is down. Gateways get no answer, and 2 of 2 pods decide locally. {APPROXIMATE.format(2)}",
        # One live pod of many.
        redis_answers(pod(mode="local"), *SILENT, **ONE_DOWN),
    ),
    (
        ("redis-node", "warning"),
        servers(LATE),
        "Redis 10.0.1.8:6379 is 11 s behind its primary. It is a replica.",
        # One that is near its capacity has an alert of its own.
        servers(WELL, busy(95_000)),
    ),
    (
        ("redis-nodes", "critical"),
        servers(*SILENT_NODES, LATE, FULL_NODE),
        "4 servers of Redis are degraded. Of 5 servers: 10.0.1.0:6379 does not answer; 10.0.1.1:6379 does not"
        " answer; 10.0.1.8:6379 is 11 s behind its primary; and 1 more. More than 3 servers is critical.",
        servers(*SILENT_NODES, LATE, WELL),
    ),
    (
        ("redis-ops", "critical"),
        facts(redis_servers=(busy(95_000), busy(1, "10.0.0.2:6379"))),
        "Redis 10.0.0.1:6379 is at 95 % of its capacity. 95,000 of 100,000 commands/s. Near its capacity,"
        " answers become slow, and pods decide calls locally.",
        facts(redis_servers=(busy(90_000),)),
    ),
    (
        ("redis-ops", "warning"),
        facts(redis_servers=(busy(85_000),)),
        "Redis 10.0.0.1:6379 is at 85 % of its capacity. 85,000 of 100,000 commands/s. Near its capacity,"
        " answers become slow, and pods decide calls locally.",
        facts(redis_servers=(busy(80_000),)),
    ),
    (
        ("unlimited", "critical"),
        facts(unlimited=True),
        "No limit refuses anything. Every quota of tiers and tenants, and every limit of callers, only counts"
        " (shadow).",
        facts(),
    ),
    (
        ("worker-away", "critical"),
        facts(evaluated_at=NOW - 31),
        "No worker evaluates alerts. None was evaluated for 31 s: the worker, beat, or their broker is down."
        " Only alerts of level 3 are sent, and edits reach pods later.",
        facts(evaluated_at=NOW - 30),
    ),
    (
        ("secret-key", "critical"),
        facts(watched=Watched(unreadable=UNREADABLE)),
        "What is stored was encrypted with another FUSEBOARD_SECRET_KEY. 2 receivers of alerts cannot be"
        " read, and no message reaches them. 1 person cannot log in with a password: their second factor"
        " cannot be read. Sessions and refusal tokens of the other key are not accepted either.",
        facts(watched=Watched()),
    ),
]
