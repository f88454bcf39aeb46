"""The files for Prometheus, Alertmanager and Grafana, as their own tools read them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.core.management import call_command

from controlplane.alerts.rules.every import RULE_OF_KEY, RULES
from controlplane.alerts.state.causes import EXPLAINS
from controlplane.metric_catalogue.every import EVERY
from controlplane.monitoring.files import FILES
from controlplane.monitoring.grafana import promql_of
from controlplane.monitoring.prometheus_rules import PROMETHEUS_RULES
from tests.controlplane.monitoring.monitoring_tools import run

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "docs" / "monitoring"
#: Every series that a metric has, by the name that PromQL uses.
SERIES = {metric.name: metric for metric in EVERY} | {
    f"{metric.name}{end}": metric
    for metric in EVERY
    if metric.type == "histogram"
    for end in ("_bucket", "_sum", "_count")
}


@pytest.mark.parametrize("path", FILES)
def test_the_committed_file_is_the_one_that_is_made(path: str) -> None:
    assert (ROOT / path).read_text() == FILES[path](), "run python manage.py write_monitoring"


def test_the_command_writes_files_with_the_address_of_the_dashboard(tmp_path: Path) -> None:
    call_command("write_monitoring", "--folder", str(tmp_path), "--url", "https://fuse.shop.example/")
    written = (tmp_path / "rules.yml").read_text()
    assert "https://fuse.shop.example/runbooks/configuration-lag" in written
    assert "fuseboard.example.com" not in written
    assert json.loads((tmp_path / "grafana/fuseboard.json").read_text())["uid"] == "fuseboard"


def test_promtool_accepts_the_rules_and_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text((FOLDER / "rules.yml").read_text())
    (tmp_path / "prometheus.yml").write_text((FOLDER / "prometheus.example.yml").read_text())
    (tmp_path / "metrics_token").write_text("token")
    checked = run("promtool", "check", "config", tmp_path / "prometheus.yml")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(PROMETHEUS_RULES) + 1} rules found" in checked.stdout + checked.stderr


def test_amtool_accepts_the_routes_and_sends_each_level_to_its_receiver() -> None:
    file = FOLDER / "alertmanager.example.yml"
    checked = run("amtool", "check-config", file)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    for labels, receiver in (
        (["level=3", "rule=redis-down"], "level-3"),
        (["level=2"], "level-2"),
        (["level=1"], "level-1"),
        (["alertname=Watchdog"], "watchdog"),
        (["alertname=Other"], "level-2"),
    ):
        routed = run("amtool", "config", "routes", "test", f"--config.file={file}", *labels)
        assert routed.stdout.strip() == receiver, labels


@pytest.mark.parametrize("text", [rule.promql for rule in PROMETHEUS_RULES])
def test_a_rule_asks_for_metrics_and_labels_of_the_catalogue(text: str) -> None:
    check_query(text)


def test_a_panel_asks_for_metrics_and_labels_of_the_catalogue() -> None:
    for metric in EVERY:
        if metric.panel is not None:
            query = promql_of(metric, metric.panel)
            check_query(query)
            assert metric.name in query


def check_query(text: str) -> None:
    used = re.findall(r"(fuseboard_\w+)(?:\{([^}]*)\})?", text)
    assert used
    for name, matchers in used:
        assert set(re.findall(r"(\w+)[!=]=?~?\"", matchers)) <= set(SERIES[name].labels), text


def test_each_rule_has_a_runbook_and_those_of_the_product_have_its_severity() -> None:
    product = {(rule.key, severity) for rule in RULES for severity in rule.severities}
    keys = {rule.key for rule in RULES}
    for rule in PROMETHEUS_RULES:
        assert (ROOT / "docs" / "runbooks" / f"{rule.runbook}.md").exists(), rule.rule
        assert rule.rule not in keys or rule.timing == RULE_OF_KEY[rule.rule].timing
        assert rule.rule not in keys or (rule.rule, rule.severity) in product


def test_each_rule_has_its_own_place_in_the_file() -> None:
    places = {rule.rule: rule.place for rule in PROMETHEUS_RULES}
    assert len(set(places.values())) == len(places)


def test_an_alert_inhibits_what_it_explains_and_nothing_worse() -> None:
    rules = yaml.safe_load((FOLDER / "alertmanager.example.yml").read_text())["inhibit_rules"]
    levels = {rule.rule: rule.timing.level for rule in PROMETHEUS_RULES}
    ours = 'alertname=~"Fuseboard.+"'
    assert all(ours in rules[0][end] for end in ("source_matchers", "target_matchers")), "others' alerts"
    causes = [rule for rule in rules if rule["source_matchers"][0].startswith("rule=")]
    assert causes
    for rule in causes:
        cause = rule["source_matchers"][0].split('"')[1]
        hidden = rule["target_matchers"][0].split('"')[1].split("|")
        assert set(hidden) <= set(EXPLAINS[cause])
        assert rule["target_matchers"][1] == f'level=~"[1-{levels[cause]}]"'
        everywhere = {"gateway-away", "outbox", "postgres-down", "redis-node", "redis-nodes", "redis-ops"}
        if cause in everywhere or everywhere & set(hidden):
            assert everywhere >= set(hidden) or cause in everywhere
            assert "equal" not in rule, "they have no environment"
        else:
            assert "environment" in rule["equal"]
            assert ("dependency" in rule["equal"]) == (cause in ("backlog-untaken", "open"))


def series(name: str, values: str, **labels: str) -> dict[str, str]:
    inner = ",".join(f'{key}="{value}"' for key, value in labels.items())
    return {"series": f"{name}{{{inner}}}", "values": values}


PRODUCTION = {"environment": "production"}
#: Alert -> series at intervals of 15 s, when it fires and when not yet or no more, and its labels.
DRIVEN: dict[str, tuple[list[dict[str, str]], list[str], list[str], dict[str, str]]] = {
    "FuseboardLagCritical": (
        [series("fuseboard_config_lag_seconds", "0x3 40x40 0x60", **PRODUCTION)],
        ["2m", "10m"],
        ["45s", "16m"],
        {**PRODUCTION, "severity": "critical", "level": "1", "rule": "lag"},
    ),
    "FuseboardOpenCritical": (
        [
            series("fuseboard_breaker_state", "0x3 1x20 2x3 0x80", dependency="llm", **PRODUCTION),
            series("fuseboard_breaker_state", "0x200", dependency="ledger", **PRODUCTION),
            # An operator forced it open.
            series("fuseboard_breaker_state", "0x3 3x200", dependency="mail", **PRODUCTION),
        ],
        ["1m", "5m", "6m"],
        ["30s", "12m"],
        {**PRODUCTION, "dependency": "llm", "severity": "critical", "level": "2", "rule": "open"},
    ),
    "FuseboardBacklogFullWarning": (
        [
            series("fuseboard_backlog_used_ratio", "0.5x3 0.85x20 0.8x80", dependency="llm", **PRODUCTION),
            series("fuseboard_backlog_used_ratio", "0.8x200", dependency="ledger", **PRODUCTION),
        ],
        ["2m30s", "6m"],
        ["1m30s", "12m"],
        {**PRODUCTION, "dependency": "llm", "severity": "warning", "level": "2", "rule": "backlog-full"},
    ),
    "FuseboardBacklogDeadWarning": (
        [
            series("fuseboard_backlog_jobs", "0x3 2x20 0x80", dependency="llm", state="dead", **PRODUCTION),
            series("fuseboard_backlog_jobs", "90x200", dependency="llm", state="ready", **PRODUCTION),
        ],
        ["2m", "5m"],
        ["1m", "9m"],
        {**PRODUCTION, "dependency": "llm", "severity": "warning", "level": "2", "rule": "backlog-dead"},
    ),
    "FuseboardBacklogUntakenWarning": (
        [series("fuseboard_backlog_untaken_seconds", "0x3 70x20 0x80", dependency="llm", **PRODUCTION)],
        ["2m", "5m"],
        ["45s", "9m"],
        {**PRODUCTION, "dependency": "llm", "severity": "warning", "level": "2", "rule": "backlog-untaken"},
    ),
    "Fuseboard429Critical": (
        [
            series("fuseboard_fleet_requests_per_second", "100x200", instance="a", **PRODUCTION),
            series("fuseboard_fleet_refused_per_second", "0x3 5x60 0x200", reason="quota", **PRODUCTION),
            # An operator suspended a tenant: these refusals are on purpose.
            series("fuseboard_fleet_refused_per_second", "50x300", reason="suspended", **PRODUCTION),
        ],
        ["5m", "16m"],
        ["2m", "25m"],
        {**PRODUCTION, "severity": "critical", "level": "1", "rule": "429"},
    ),
    "FuseboardLocalCritical": (
        [
            series("fuseboard_fleet_servers", "0x3 4x20 0x80", mode="local", state="online", **PRODUCTION),
            series("fuseboard_fleet_servers", "90x200", mode="shared", state="online", **PRODUCTION),
        ],
        ["2m", "5m"],
        ["45s", "9m"],
        {**PRODUCTION, "severity": "critical", "level": "2", "rule": "local"},
    ),
    "FuseboardP99Critical": (
        [series("fuseboard_fleet_redis_p99_seconds", "0.0004x3 0.009x40 0.0004x80", **PRODUCTION)],
        ["3m", "10m"],
        ["1m15s", "16m"],
        {**PRODUCTION, "severity": "critical", "level": "2", "rule": "p99"},
    ),
    "FuseboardQuotaCritical": (
        [series("fuseboard_quota_used_ratio", "0.5x3 1.02x40", tenant="acme", quota="month", **PRODUCTION)],
        ["5m"],
        ["1m"],
        {
            **PRODUCTION,
            "tenant": "acme",
            "quota": "month",
            "severity": "critical",
            "level": "1",
            "rule": "quota",
        },
    ),
    "FuseboardQuotaWarning": (
        [
            series(
                "fuseboard_quota_used_ratio",
                values,
                tenant="acme",
                quota=quota,
                state=state,
                **PRODUCTION,
            )
            for quota, state, values in (
                ("early", "ok", "0.4x3 stale"),
                ("early", "warn", "_x3 0.6x40"),
                ("usual", "ok", "0.6x43"),
                ("late", "will_be_over", "0.7x43"),
            )
        ],
        ["5m"],
        ["1m"],
        {
            **PRODUCTION,
            "tenant": "acme",
            "quota": "early",
            "severity": "warning",
            "level": "1",
            "rule": "quota",
        },
    ),
    "FuseboardGatewayAwayCritical": (
        [series("fuseboard_gateway_configuration_age_seconds", "1x8 stale", instance="a")],
        ["10m"],
        ["1m", "2m30s"],
        {"severity": "critical", "level": "2", "rule": "gateway-away"},
    ),
    "FuseboardRedisOpsCritical": (
        [
            series("fuseboard_redis_capacity_ops", "100000x200", node="r:1", instance="a"),
            series("fuseboard_redis_capacity_ops", "100000x200", node="r:2", instance="a"),
            series("fuseboard_redis_ops_per_second", "50000x3 95000x40 50000x80", node="r:1", instance="a"),
            series("fuseboard_redis_ops_per_second", "50000x200", node="r:2", instance="a"),
        ],
        ["5m"],
        ["1m", "20m"],
        {"node": "r:1", "severity": "critical", "level": "2", "rule": "redis-ops"},
    ),
    "FuseboardRedisNodesCritical": (
        [
            *(
                series("fuseboard_redis_up", "1x3 0x40 1x80", node=f"r:{n}", role="replica", instance="a")
                for n in (1, 2)
            ),
            series("fuseboard_redis_up", "1x200", node="r:3", role="replica", instance="a"),
            series("fuseboard_redis_replication_lag_seconds", "0x3 11x40 0x80", node="r:3", instance="a"),
            series("fuseboard_redis_memory_bytes", "10x3 95x40 10x80", node="r:4", instance="a"),
            series("fuseboard_redis_memory_limit_bytes", "100x200", node="r:4", instance="a"),
            # Late and full: one server.
            series("fuseboard_redis_memory_bytes", "99x200", node="r:3", instance="a"),
            series("fuseboard_redis_memory_limit_bytes", "100x200", node="r:3", instance="a"),
        ],
        ["3m", "10m"],
        ["1m", "20m"],
        {"severity": "critical", "level": "2", "rule": "redis-nodes"},
    ),
    "FuseboardAuditExportWarning": (
        [series("fuseboard_audit_export_oldest_seconds", "2x3 700x40 1x40", target="webhook", instance="a")],
        ["3m", "10m"],
        ["1m", "14m"],
        {"target": "webhook", "severity": "warning", "level": "2", "rule": "audit-export"},
    ),
    "FuseboardRedisDownCritical": (
        [
            series("fuseboard_fleet_redis_primaries_down", "0x3 1x20 0x80", instance="a", **PRODUCTION),
            series("fuseboard_fleet_servers", "0x3 2x20 0x80", mode="local", state="online", **PRODUCTION),
            series("fuseboard_fleet_servers", "9x200", mode="shared", state="late", **PRODUCTION),
            # One live pod of many, and none: nothing confirms that it is not the gateway that is cut off.
            series("fuseboard_fleet_redis_primaries_down", "1x200", instance="a", environment="one"),
            series("fuseboard_fleet_servers", "1x200", mode="local", state="online", environment="one"),
            series("fuseboard_fleet_servers", "9x200", mode="local", state="unknown", environment="one"),
            series("fuseboard_fleet_redis_primaries_down", "1x200", instance="a", environment="none"),
            series("fuseboard_fleet_servers", "9x200", mode="local", state="offline", environment="none"),
        ],
        ["2m", "5m"],
        ["45s", "9m"],
        {**PRODUCTION, "severity": "critical", "level": "3", "rule": "redis-down"},
    ),
    "FuseboardCheckErrorsCritical": (
        [
            series("fuseboard_fleet_redis_asked_per_second", "1000x200", instance="a", **PRODUCTION),
            series(
                "fuseboard_fleet_redis_failures_per_second", "0x3 2x40 0x80", kind="timeout", **PRODUCTION
            ),
        ],
        ["5m"],
        ["1m", "20m"],
        {**PRODUCTION, "severity": "critical", "level": "1", "rule": "check-errors"},
    ),
}


@pytest.mark.parametrize("alert", DRIVEN)
def test_a_rule_fires_over_its_threshold_and_is_resolved_below_it(alert: str, tmp_path: Path) -> None:
    inputs, firing, quiet, labels = DRIVEN[alert]
    tests: list[dict[str, Any]] = [
        {"eval_time": at, "alertname": alert, "exp_alerts": [{"exp_labels": labels}]} for at in firing
    ]
    tests += [{"eval_time": at, "alertname": alert, "exp_alerts": []} for at in quiet]
    # Texts depend on the figures; labels decide who is called.
    rules = yaml.safe_load((FOLDER / "rules.yml").read_text())
    for rule in rules["groups"][0]["rules"]:
        del rule["annotations"]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(rules))
    document = {
        "rule_files": ["rules.yml"],
        "evaluation_interval": "15s",
        "tests": [{"interval": "15s", "input_series": inputs, "alert_rule_test": tests}],
    }
    (tmp_path / "test.yml").write_text(yaml.safe_dump(document))
    tested = run("promtool", "test", "rules", "test.yml", cwd=tmp_path)
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_the_dashboard_has_a_panel_for_each_entry_of_the_catalogue_that_names_one() -> None:
    document = json.loads((FOLDER / "grafana/fuseboard.json").read_text())
    assert (document["uid"], document["schemaVersion"]) == ("fuseboard", 38)
    shown = {panel["targets"][0]["expr"] for panel in document["panels"] if panel["type"] != "row"}
    assert shown == {promql_of(metric, metric.panel) for metric in EVERY if metric.panel is not None}
    assert len({panel["id"] for panel in document["panels"]}) == len(document["panels"])
    for panel in document["panels"]:
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${DS_PROMETHEUS}"
