"""The alert rules, by Prometheus's own promtool, over metrics of a running control plane."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from scripts.dashboard_files import ROWS

from tests.cli.running import KUBECTL
from tests.docs.runner import DOCS, Shell, blocks, follow
from tests.e2e.plane import plane
from tests.monitoring.expressions import known, plain, unknown_in
from tests.monitoring.plane import SITE, make_token, make_trouble, recorded, scraped
from tests.monitoring.promtool import needs_promtool, promtool
from tests.monitoring.recording import Recording, input_series
from tests.support.paths import ROOT
from tests.support.waiting import eventually
from unbounded_lab.bmc import LabBmc

RULES: Final = ROOT / "deploy" / "monitoring" / "rules.yaml"
GROUPS: Final[list[dict[str, Any]]] = yaml.safe_load(RULES.read_text())["groups"]
ALL: Final = [rule for group in GROUPS for rule in group["rules"]]
ALERTS: Final = {rule["alert"]: rule for rule in ALL if "alert" in rule}
RECORDED: Final = frozenset(rule["record"] for rule in ALL if "record" in rule)
LEASE: Final = "unbounded-operations"
EXPIRY: Final = "unbounded_certificate_expiry_timestamp_seconds"
LEADS: Final = "unbounded_leading"
Body = dict[str, Any]

MACHINES: Final = {
    "reboot-worker-01": "stuck",
    "worker-01": "dark",
    "rack1-01": "refused",
    "rack1-02": "halted-1",
    "rack1-03": "without-image",
}


@dataclass(frozen=True)
class Firing:
    """An alert that is to fire."""

    alert: str
    summary: str
    labels: Mapping[str, str] = field(default_factory=dict)

    def expected(self) -> Body:
        rule = ALERTS[self.alert]
        description = re.sub(
            r"{{ \$labels\.(\w+) }}", lambda found: self.labels[found[1]], rule["annotations"]["description"]
        )
        annotations = rule["annotations"] | {"summary": self.summary, "description": description}
        return {"exp_labels": {**self.labels, **rule["labels"]}, "exp_annotations": annotations}


TROUBLE: Final = (
    Firing(
        "UnboundedOperationStuck",
        "A NodeReboot has waited for 4h 0m 0s (WaitingForExecutor)",
        {"kind": "NodeReboot", "by": "executor", "reason": "WaitingForExecutor"},
    ),
    Firing(
        "UnboundedOperationStuck",
        "A HostReboot has waited for 4h 0m 0s (NoAnswer)",
        {"kind": "HostReboot", "by": "host", "reason": "NoAnswer"},
    ),
    Firing(
        "UnboundedRolloutFailing", "A rollout has failed targets, or has halted (operation)", {"source": "operation"}
    ),
    Firing(
        "UnboundedRolloutFailing",
        "A rollout has failed targets, or has halted (configuration)",
        {"source": "configuration"},
    ),
    Firing(
        "UnboundedHostDark",
        f"1 hosts of site {SITE} do not answer (NodeNotReady)",
        {"site": SITE, "reason": "NodeNotReady"},
    ),
    Firing(
        "UnboundedHostDark",
        f"1 hosts of site {SITE} do not answer (ConnectionRefused)",
        {"site": SITE, "reason": "ConnectionRefused"},
    ),
    Firing("UnboundedBmcPasswordRefused", f"1 BMCs of site {SITE} refuse their password", {"site": SITE}),
    Firing("UnboundedBmcUnreachable", f"4 BMCs of site {SITE} do not answer", {"site": SITE}),
    Firing(
        "UnboundedHardwareFailing",
        f"1 parts of kind disk in site {SITE} are Critical",
        {"site": SITE, "part": "disk", "health": "Critical"},
    ),
    Firing(
        "UnboundedBootImageMissing",
        f"The boot server of site {SITE} has no image for 1 Machines (PullFailed)",
        {"site": SITE, "reason": "PullFailed"},
    ),
    Firing(
        "UnboundedAgentCertificateExpires",
        f"Certificates of 1 agents of site {SITE} have expired, or expire within a day",
        {"site": SITE},
    ),
    Firing(
        "UnboundedBootstrapTokenExpires",
        f"No bootstrap token of site {SITE} is valid for more than 7 days",
        {"site": SITE},
    ),
    Firing(
        "UnboundedBackupMissing",
        "The newest backup of the control plane is 4h 0m 0s old",
        {"job": "target-0"},
    ),
)
FAILING: Final = Firing(
    "UnboundedOperationsFailing",
    "3 HostReboot have failed in 30 minutes (DeadlineExceeded)",
    {"kind": "HostReboot", "reason": "DeadlineExceeded"},
)


# ---- without a control plane


def test_each_metric_and_label_of_the_rules_is_in_the_reference() -> None:
    unknown = {str(rule.get("alert")): list(unknown_in(rule["expr"], recorded=RECORDED)) for rule in ALL}
    assert not {alert: names for alert, names in unknown.items() if names}
    used = {name for rule in ALL for name in known() if name in rule["expr"]}
    assert len(used) > 10


@pytest.mark.parametrize(
    ("expression", "unknown"),
    [
        ('sum by (site) (unbounded_machines{phase="Ready"})', []),
        ('unbounded_machinez{phase="Ready"}', ["unbounded_machinez"]),
        ('unbounded_machines{face=~"Ready{x}"} > 1', ["unbounded_machines{face}"]),
        ("sum by (kind) (unbounded_machines)", ["kind"]),
        ("rate(unbounded_operation_duration_seconds[5m])", ["unbounded_operation_duration_seconds"]),
        ("sum by (le) (rate(unbounded_operation_duration_seconds_bucket[5m]))", []),
    ],
)
def test_a_name_that_no_process_has_is_found(expression: str, unknown: list[str]) -> None:
    assert list(unknown_in(expression)) == unknown


def test_each_alert_has_a_section_in_the_runbook_and_no_section_is_left_over() -> None:
    headings = {line[3:] for line in (DOCS / "alerts.md").read_text().splitlines() if line.startswith("## ")}
    assert headings == ALERTS.keys()
    for name, rule in ALERTS.items():
        assert rule["annotations"]["runbook_url"].endswith(f"/docs/alerts.html#{name.lower()}")
        assert rule["labels"]["severity"] in ("warning", "critical")


@needs_promtool
def test_the_rules_are_valid() -> None:
    assert f"{len(ALL)} rules found" in promtool("check", "rules", str(RULES))


def test_the_operator_gets_the_same_rules() -> None:
    written = ROOT / "deploy" / "components" / "monitoring" / "unbounded-alerts.yaml"
    assert yaml.safe_load(written.read_text())["spec"]["groups"] == GROUPS


@needs_promtool
def test_the_configuration_in_the_guide_is_valid(tmp_path: Path) -> None:
    (block,) = blocks(DOCS / "monitoring.md", "yaml")
    (tmp_path / "prometheus.yml").write_text(block.code)
    (tmp_path / "rules.yaml").write_text(RULES.read_text())
    for name in ("token", "ca.crt"):
        (tmp_path / name).write_text("")
    assert f"{len(ALL)} rules found" in promtool("check", "config", str(tmp_path / "prometheus.yml"))


# ---- with one


Series = list[Body]


def case(
    name: str, series: Series, at: str, firing: tuple[Firing, ...], *, interval: str = "1m", of: Iterable[str] = ALERTS
) -> Body:
    """A test in which these alerts fire at that time.

    Args:
        of: the alerts that are compared; others of them do not fire.
    """
    tests = [
        {
            "eval_time": at,
            "alertname": alert,
            "exp_alerts": [one.expected() for one in firing if one.alert == alert],
        }
        for alert in of
    ]
    return {"name": name, "interval": interval, "input_series": series, "alert_rule_test": tests}


def of_trouble(recording: Recording) -> Iterator[Body]:
    blocked, backup = "unbounded_operations_blocked_seconds", "unbounded_backup_last_success_timestamp_seconds"
    from_now = recording.changed(lambda name, value: 0.0 if name in (blocked, backup) else value)
    yield case("failures at once", input_series(from_now), "29m", (FAILING,), of=(FAILING.alert,))
    yield case("trouble", input_series(from_now, {blocked: 60.0}), "4h", TROUBLE)
    more = {"unbounded_operations_total": 0.1}  # three in 30 minutes, of each failure
    yield case("failures that add up", input_series(recording, more), "4h", (FAILING,), of=(FAILING.alert,))


def of_leaders(recording: Recording) -> Iterator[Body]:
    nobody = recording.changed(lambda name, value: 0.0 if name == LEADS else value)
    leases = sorted({dict(labels)["lease"] for labels in nobody.of_name(LEADS)})
    assert LEASE in leases
    firing = tuple(Firing("UnboundedNoLeader", f"No process leads {one}", {"lease": one}) for one in leases)
    yield case("no leader", input_series(nobody), "10m", firing)
    gone = Recording({key: value for key, value in nobody.samples.items() if key[0] != LEADS})
    absent = Firing("UnboundedNoLeader", f"No process leads {LEASE}", {"lease": LEASE})
    yield case("no process", input_series(gone), "10m", (absent,))


def of_certificates(recording: Recording, certificate: str, job: str) -> Iterator[Body]:
    days = Recording({key: value // 86400 * 86400 for key, value in recording.samples.items() if key[0] == EXPIRY})
    (left_s,) = days.of_name(EXPIRY, certificate=certificate).values()
    at = int(left_s // 86400) - 12  # the second evaluation below 14 days
    labels = {"certificate": certificate, "job": job}
    firing = Firing("UnboundedCertificateExpires", f"Certificate {certificate} expires in 12d 0h 0m 0s", labels)
    yield case("certificate, early", input_series(days), f"{at - 3}d", (), interval="1d", of=(firing.alert,))
    yield case("certificate", input_series(days), f"{at}d", (firing,), interval="1d", of=(firing.alert,))


def of_dashboard(recording: Recording) -> Body:
    """A test in which each panel has data, except those of network boot, which the plane does not serve."""
    views = [view for row, views in ROWS.items() if row != "Network boot" for view in views]
    tests = [
        {
            "expr": f"clamp_max(count({plain(view.query)}), 1)",
            "eval_time": "30m",
            "exp_samples": [{"value": 1, "labels": "{}"}],
        }
        for view in views
    ]
    return {"name": "dashboard", "interval": "1m", "input_series": input_series(recording), "promql_expr_test": tests}


def run_rules(folder: Path, tests: Iterable[Body], *, every: str = "1m") -> None:
    body = {"rule_files": [str(RULES)], "evaluation_interval": every, "tests": list(tests)}
    file = folder / "tests.yaml"
    file.write_text(yaml.safe_dump(body, sort_keys=False, width=10_000))
    promtool("test", "rules", str(file))


def check_names(recording: Recording) -> None:
    """Fail if the reference lacks a metric, or has other labels of one."""
    metrics = known()
    for name, labels in recording.samples:
        if not name.endswith("_created"):
            assert name in metrics, name
            assert {label for label, _ in labels} - {"job", "le"} == set(metrics[name].labels), name


@pytest.mark.slow
@needs_promtool
@pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")
async def test_alerts_fire_on_a_broken_plane_and_never_on_a_healthy_one(tmp_path: Path) -> None:
    backups = tmp_path / "backups"
    await asyncio.to_thread(backups.mkdir)
    async with plane(tmp_path / "data", "--lab", "1") as it:
        await it.running.says("Complete:")
        healthy = await recorded(it)
        for text in await scraped(it):
            await asyncio.to_thread(promtool, "check", "metrics", given=text)
        await make_token(it)
    async with (
        LabBmc(boot_s=0.2, shutdown_s=0.2) as bmc,
        plane(tmp_path / "data", "--lab", "1", "--backup-to", str(backups)) as it,
    ):
        await make_trouble(it, bmc)

        async def in_trouble() -> Recording | None:
            found = await recorded(it)
            present = (
                found.of_name("unbounded_rollouts", source="operation", phase="Halted"),
                found.of_name("unbounded_rollouts", source="configuration", phase="Halted"),
                found.of_name("unbounded_bmcs", state="refused"),
                found.of_name("unbounded_machines", reason="ConnectionRefused"),
                found.of_name("unbounded_machines", phase="Ready", reason="NodeNotReady"),
                found.of_name("unbounded_operations_blocked_seconds", by="executor"),
                found.of_name("unbounded_operations_blocked_seconds", by="host"),
                found.of_name("unbounded_disruption_budget_machines"),
                sum(found.of_name("unbounded_backups_total", result="success").values()),
            )
            return found if all(present) else None

        trouble = await eventually(in_trouble, within_s=60.0)
        await asyncio.to_thread(shutil.copytree, RULES.parent, it.shell.folder / "deploy" / "monitoring")
        shell = Shell(it.shell.folder, it.shell.kubeconfig, MACHINES)
        shown = await follow(DOCS / "monitoring.md", shell) + await follow(DOCS / "alerts.md", shell)
    assert 'expiry_timestamp_seconds{certificate="server"}' in shown
    assert "refuse" in shown
    for recording in (healthy, trouble):
        check_names(recording)
    cases = [case("healthy", input_series(healthy), "2h", ())]
    cases += [*of_trouble(trouble), *of_leaders(healthy)]
    cases.append(of_dashboard(trouble))
    await asyncio.to_thread(run_rules, tmp_path, cases)
    await asyncio.to_thread(run_rules, tmp_path, of_certificates(healthy, "server", "target-1"), every="1d")
