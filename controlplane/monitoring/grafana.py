"""``docs/monitoring/grafana/fuseboard.json``: a dashboard of the panels in the catalogue."""

import json
from typing import Any

from controlplane.metric_catalogue.every import EVERY
from controlplane.metric_catalogue.metric import WEB, Metric, Panel

#: The version of Grafana 10; newer ones read it too.
SCHEMA_VERSION = 38
UID = "fuseboard"
_SOURCE = {"type": "prometheus", "uid": "${DS_PROMETHEUS}"}
#: The end of a metric's name -> the unit of its axis.
_UNITS = {"_seconds": "s", "_bytes": "bytes", "_ratio": "percentunit", "_per_second": "cps"}
_WIDTH, _HEIGHT = 12, 8


def grafana_dashboard() -> str:
    rows: dict[str, list[tuple[Metric, Panel]]] = {}
    for metric in EVERY:
        if metric.panel is not None:
            rows.setdefault(metric.panel.row, []).append((metric, metric.panel))
    panels: list[dict[str, Any]] = []
    top = 0
    for title, metrics in rows.items():
        place = {"x": 0, "y": top, "w": 2 * _WIDTH, "h": 1}
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": title,
                "gridPos": place,
                "collapsed": False,
                "panels": [],
            }
        )
        top += 1
        for number, (metric, panel) in enumerate(metrics):
            x, y = number % 2 * _WIDTH, top + number // 2 * _HEIGHT
            panels.append(_panel(len(panels) + 1, metric, panel, x=x, y=y))
        top += (len(metrics) + 1) // 2 * _HEIGHT
    return json.dumps(_document(panels), indent=2) + "\n"


def _panel(number: int, metric: Metric, panel: Panel, *, x: int, y: int) -> dict[str, Any]:
    unit = next((unit for end, unit in _UNITS.items() if metric.name.endswith(end)), "short")
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": metric.help,
        "datasource": _SOURCE,
        "gridPos": {"x": x, "y": y, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {
                "refId": "A",
                "datasource": _SOURCE,
                "expr": promql_of(metric, panel),
                "legendFormat": panel.legend or _legend(metric, panel) or "__auto",
            }
        ],
    }


def promql_of(metric: Metric, panel: Panel) -> str:
    """The highest of durations and of what each web process exports about the whole fleet; else the sum.

    A histogram is drawn by its 99th percentile, over all of its labels.
    """
    if panel.promql:
        return panel.promql
    if metric.type == "histogram":
        return f"histogram_quantile(0.99, sum by (le) (rate({metric.name}_bucket[5m])))"
    highest = metric.type == "gauge" and (WEB in metric.by or metric.name.endswith("_seconds"))
    series = f"{metric.name}{{{panel.only}}}" if panel.only else metric.name
    over_time = "rate" if panel.per_second else "increase"
    figure = f"{over_time}({series}[5m])" if metric.type == "counter" else series
    lines = _lines(metric, panel)
    over = f" by ({', '.join(lines)}) " if lines else ""
    return f"{'max' if highest else 'sum'}{over}({figure}){' > 0' if panel.above_zero else ''}"


def _legend(metric: Metric, panel: Panel) -> str:
    return " ".join(f"{{{{{label}}}}}" for label in _lines(metric, panel))


def _lines(metric: Metric, panel: Panel) -> tuple[str, ...]:
    return metric.labels if panel.lines is None else panel.lines


def _document(panels: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "__inputs": [
            {
                "name": "DS_PROMETHEUS",
                "label": "Prometheus",
                "type": "datasource",
                "pluginId": "prometheus",
                "pluginName": "Prometheus",
            }
        ],
        "uid": UID,
        "title": "Fuseboard",
        "tags": ["fuseboard"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "timezone": "",
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": []},
        "annotations": {"list": []},
        "panels": panels,
    }
