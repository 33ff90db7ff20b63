"""PromQL expressions and Grafana panels as plain values.

How replicas are added up is decided metric by metric. What a gateway counts of its own requests is summed. What every
gateway sees of the same thing (workers, keys, lag) is taken as the largest, or the smallest where low is bad: a sum
would multiply it by the number of replicas.
"""

from __future__ import annotations

from typing import Any

Panel = dict[str, Any]

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
POOL = 'namespace=~"$namespace", pool=~"$pool"'
NAMESPACE = 'namespace=~"$namespace"'
COLUMNS = 24
"""Width of Grafana's grid."""


def rate(metric: str, by: str = "", where: str = POOL) -> str:
    """Per-second rate of a counter, each replica's own share added up."""
    grouping = f" by ({by})" if by else ""
    return f"sum{grouping} (rate({metric}{{{where}}}[$__rate_interval]))"


def share(part: str, whole: str) -> str:
    """A ratio that has no value, instead of NaN, while there is nothing to divide by."""
    return f"{part} / ({whole} > 0)"


def quantile(q: float, histogram: str, by: str = "", where: str = POOL) -> str:
    """A quantile over all replicas: buckets are added before it is taken."""
    grouping = "le" + (f", {by}" if by else "")
    return f"histogram_quantile({q}, {rate(histogram + '_bucket', grouping, where)})"


def quantiles(histogram: str) -> list[tuple[str, str]]:
    return [(quantile(q, histogram), f"p{q * 100:.0f}") for q in (0.5, 0.9, 0.99)]


def target(expression: str, legend: str, index: int) -> dict[str, Any]:
    return {"datasource": DATASOURCE, "expr": expression, "legendFormat": legend, "refId": chr(ord("A") + index)}


def panel(kind: str, title: str, unit: str, about: str, *queries: tuple[str, str], width: int = 8) -> Panel:
    """A panel of (expression, legend) pairs. `unit` is Grafana's name; `about` is its help text."""
    return {
        "type": kind,
        "title": title,
        "description": about,
        "datasource": DATASOURCE,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "options": {},
        "targets": [target(expression, legend, index) for index, (expression, legend) in enumerate(queries)],
        "gridPos": {"w": width, "h": 4 if kind == "stat" else 8},
    }


def series(title: str, unit: str, about: str, *queries: tuple[str, str]) -> Panel:
    """A time series."""
    made = panel("timeseries", title, unit, about, *queries)
    made["fieldConfig"]["defaults"]["custom"] = {"fillOpacity": 8, "showPoints": "never", "spanNulls": False}
    made["options"] = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}
    return made


def stat(title: str, unit: str, about: str, expression: str) -> Panel:
    """One figure."""
    made = panel("stat", title, unit, about, (expression, ""), width=4)
    made["options"] = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "none", "graphMode": "area"}
    return made


def variable(name: str, label: str, query: str) -> dict[str, Any]:
    """A variable of label values. Its `All` also takes series without the label, as scraped outside Kubernetes."""
    return {
        "type": "query",
        "name": name,
        "label": label,
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
        "sort": 1,
    }
