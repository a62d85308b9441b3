"""Generator of deploy/monitoring/dashboard.json: a dashboard of Grafana over the metrics of all processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from grafana_foundation_sdk.builders import dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.builders.common import StackingConfig
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import StackingMode
from grafana_foundation_sdk.models.dashboard import Dashboard, DataSourceRef, VariableHide
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

PATH: Final = "deploy/monitoring/dashboard.json"
UID: Final = "unbounded-fleet"
SOURCE: Final = DataSourceRef(type_val="prometheus", uid="${source}")
SITES: Final = 'site=~"$site"'
HEIGHT, WIDE, NARROW = 8, 12, 6


@dataclass(frozen=True)
class View:
    """A panel.

    Args:
        query: in PromQL.
        legend: the name of each series.
        unit: of Grafana.
        shows: timeseries, stacked, table or stat.
    """

    title: str
    query: str
    legend: str = ""
    unit: str = "short"
    shows: str = "timeseries"
    text: str = ""


ROWS: Final[dict[str, tuple[View, ...]]] = {
    "Fleet": (
        View("Machines", f"sum(unbounded_machines{{{SITES}}})", shows="stat"),
        View("Operations that wait", "sum(unbounded_operations_blocked)", shows="stat"),
        View("BMCs that do not answer", f'sum(unbounded_bmcs{{{SITES},state!="reachable"}})', shows="stat"),
        View("Failing parts", f'sum(unbounded_hardware_parts{{{SITES},health=~"Warning|Critical"}})', shows="stat"),
        View("Machines by phase", f"sum by (phase) (unbounded_machines{{{SITES}}})", "{{phase}}", shows="stacked"),
        View(
            "Machines with a reason",
            f'sum by (site, phase, reason) (unbounded_machines{{{SITES},reason!=""}})',
            shows="table",
            text="What blocks Machines. `kubectl get mach` has the names.",
        ),
        View("BMCs", f"sum by (state) (unbounded_bmcs{{{SITES}}})", "{{state}}", shows="stacked"),
        View(
            "Parts by health",
            f"sum by (part, health) (unbounded_hardware_parts{{{SITES}}})",
            "{{part}} {{health}}",
            shows="stacked",
        ),
    ),
    "Operations": (
        View(
            "Ended in 5 minutes",
            "sum by (kind, phase) (increase(unbounded_operations_total[5m]))",
            "{{kind}} {{phase}}",
            shows="stacked",
        ),
        View("Open", "sum by (kind, phase) (unbounded_operations_open)", "{{kind}} {{phase}}", shows="stacked"),
        View("Waiting", "sum by (by, reason) (unbounded_operations_blocked)", "{{by}}: {{reason}}", shows="stacked"),
        View(
            "Longest wait",
            "max by (by, reason) (unbounded_operations_blocked_seconds)",
            "{{by}}: {{reason}}",
            "s",
        ),
        View(
            "Time in stages, 95 %",
            "histogram_quantile(0.95, sum by (le, kind, stage) "
            "(rate(unbounded_operation_stage_duration_seconds_bucket[$__rate_interval])))",
            "{{kind}} {{stage}}",
            "s",
        ),
        View("Present stages", "max by (kind, stage) (unbounded_operations_stage_seconds)", "{{kind}} {{stage}}", "s"),
    ),
    "Rollouts and budgets": (
        View("Rollouts", "sum by (source, phase) (unbounded_rollouts)", "{{source}} {{phase}}"),
        View(
            "Machines of rollouts",
            "sum by (source, result) (unbounded_rollout_targets)",
            "{{source}} {{result}}",
            shows="stacked",
        ),
        View("Machines under a budget", "sum by (state) (unbounded_disruption_budget_machines)", "{{state}}"),
        View("Budgets", "sum by (state) (unbounded_disruption_budgets)", "{{state}}", shows="stacked"),
    ),
    "Expiry": (
        View(
            "Certificates of agents",
            f"sum by (left) (unbounded_agent_certificates{{{SITES}}})",
            "{{left}}",
            shows="stacked",
        ),
        View("Bootstrap tokens", f"sum by (left) (unbounded_bootstrap_tokens{{{SITES}}})", "{{left}}", shows="stacked"),
        View(
            "Certificates of servers, remaining time",
            "min by (certificate) (unbounded_certificate_expiry_timestamp_seconds - time())",
            "{{certificate}}",
            "s",
        ),
    ),
    "Control plane": (
        View("Leaders", "sum by (lease) (unbounded_leading)", "{{lease}}"),
        View("New leaders in an hour", "sum by (lease) (changes(unbounded_epoch[1h]))", "{{lease}}"),
        View(
            "Requests to the API",
            "sum by (verb, code) (rate(unbounded_api_requests_total[$__rate_interval]))",
            "{{verb}} {{code}}",
            "reqps",
        ),
        View(
            "Requests to the API, 99 %",
            "histogram_quantile(0.99, sum by (le, verb) "
            "(rate(unbounded_api_request_seconds_bucket[$__rate_interval])))",
            "{{verb}}",
            "s",
        ),
        View(
            "Reconciles that failed",
            'sum by (controller, result) (rate(unbounded_reconciles_total{result!="done"}[$__rate_interval]))',
            "{{controller}}: {{result}}",
            "ops",
        ),
        View("Queues", "sum by (controller) (unbounded_queue_depth)", "{{controller}}"),
    ),
    "Network boot": (
        View("Sent", "sum(rate(unbounded_netboot_http_sent_bytes_total[$__rate_interval]))", "sent", "Bps"),
        View("Open transfers", "sum(unbounded_netboot_http_open_transfers)", "transfers"),
        View(
            "DHCP packets",
            "sum by (result) (rate(unbounded_netboot_dhcp_packets_total[$__rate_interval]))",
            "{{result}}",
            "pps",
        ),
        View(
            "HTTP requests",
            "sum by (code) (rate(unbounded_netboot_http_requests_total[$__rate_interval]))",
            "{{code}}",
            "reqps",
        ),
    ),
}


def files() -> dict[str, str]:
    """Return the dashboard by its path."""
    return {PATH: json.dumps(_dashboard(), cls=JSONEncoder, indent=2, sort_keys=True) + "\n"}


def _dashboard() -> Dashboard:
    built = (
        dashboard.Dashboard("Unbounded")
        .uid(UID)
        .tags(["unbounded"])
        .description("Generated by `python -m scripts.generate` from scripts/dashboard_files.py; do not edit.")
        .readonly()
        .refresh("1m")
        .time("now-6h", "now")
        .timezone("browser")
        .with_variable(dashboard.DatasourceVariable("source").label("Data source").type("prometheus"))
        .with_variable(
            dashboard.QueryVariable("site")
            .label("Site")
            .datasource(SOURCE)
            .query("label_values(unbounded_machines, site)")
            .multi(True)
            .include_all(True)
            .all_value(".*")
            .hide(VariableHide.DONT_HIDE)
        )
    )
    for title, views in ROWS.items():
        built = built.with_row(dashboard.Row(title))
        for panel in _panels(views):
            built = built.with_panel(panel)
    return built.build()


Panel = timeseries.Panel | table.Panel | stat.Panel


def _panels(views: tuple[View, ...]) -> Iterator[Panel]:
    for view in views:
        panel: Panel
        query = prometheus.Dataquery().ref_id("A").expr(view.query).legend_format(view.legend)
        if view.shows == "table":
            panel = table.Panel().with_target(query.format(PromQueryFormat.TABLE).instant())
        elif view.shows == "stat":
            panel = stat.Panel().with_target(query.instant())
        else:
            panel = timeseries.Panel().with_target(query)
            if view.shows == "stacked":
                panel = panel.stacking(StackingConfig().mode(StackingMode.NORMAL)).fill_opacity(30)
        yield (
            panel.title(view.title)
            .description(view.text)
            .datasource(SOURCE)
            .unit(view.unit)
            .height(HEIGHT if view.shows != "stat" else HEIGHT // 2)
            .span(NARROW if view.shows == "stat" else WIDE)
        )
