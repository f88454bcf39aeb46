"""Alerts and their deliveries."""

from controlplane.metric_catalogue.metric import GATEWAY, WEB, WORKER, Counter, Gauge, Panel, per_environment

_ROW = "Alerts"

NEWS = Counter(
    "fuseboard_alert_news_total",
    "Alerts that fired, worsened, or were resolved.",
    by=(WEB, WORKER),
    labels=("rule", "news"),
    most=150,
    panel=Panel(_ROW, "News of alerts", above_zero=True),
)
DELIVERIES = Counter(
    "fuseboard_deliveries_total",
    "Attempts to send news of alerts, by result.",
    by=(WEB, WORKER),
    labels=("result",),
    most=6,
    panel=Panel(_ROW, "Attempts to send news"),
)
ALERTS = per_environment(
    "fuseboard_alerts",
    Gauge,
    "Alerts that are not resolved, by level and state.",
    WEB,
    {"level": 3, "severity": 2, "state": 3},
    panel=Panel(
        _ROW,
        "Alerts that fire",
        lines=("environment", "level", "severity"),
        only='state="firing"',
        legend="{{environment}} level {{level}} {{severity}}",
    ),
)
EVALUATED = per_environment(
    "fuseboard_alerts_evaluated_timestamp_seconds",
    Gauge,
    "When the worker last checked the alert rules.",
    WEB,
)
DELIVERY_OLDEST = Gauge(
    "fuseboard_delivery_oldest_seconds",
    "Age of the oldest message that should have been sent by now.",
    by=(WEB,),
)
AUDIT_EXPORTED = Counter(
    "fuseboard_audit_exported_total",
    "Audit entries that were exported, and attempts that failed, by target.",
    by=(WORKER,),
    labels=("target", "result"),
    most=4,
)
AUDIT_EXPORT_WAITING = Gauge(
    "fuseboard_audit_export_waiting",
    "Audit entries that a target does not have yet.",
    by=(WEB,),
    labels=("target",),
    most=2,
)
AUDIT_EXPORT_OLDEST = Gauge(
    "fuseboard_audit_export_oldest_seconds",
    "Age of the oldest audit entry that a target does not have yet; missing when it has all.",
    by=(WEB,),
    labels=("target",),
    most=2,
)
ONCALL_MESSAGES = Counter(
    "fuseboard_gateway_oncall_messages_total",
    "Attempts of a gateway to send alerts of level 3 while no worker does, by the state after them.",
    by=(GATEWAY,),
    labels=("state",),
    most=4,
)
GATEWAY_WATCHDOG_PINGS = Counter(
    "fuseboard_gateway_watchdog_pings_total",
    "Pings of the watchdog by a gateway: ok, failed, or refused.",
    by=(GATEWAY,),
    labels=("result",),
    most=3,
)
WATCHDOG_PINGS = Counter(
    "fuseboard_watchdog_pings_total",
    "Pings of the watchdog by a worker: ok, failed, refused, or left_out because alerts are not evaluated.",
    by=(WEB, WORKER),
    labels=("result",),
    most=4,
)
