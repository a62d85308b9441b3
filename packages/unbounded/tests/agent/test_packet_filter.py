"""Removal of packet rules from the host's network: Kubernetes' own, and nothing of the host's.

The recording is of kubelet 1.36 in a Debian 12 node, as nft 1.0.6 of its host prints it.
"""

from __future__ import annotations

import json
from typing import Any, Final

from tests.support.paths import GOLDENS
from unbounded.agent.steps.packet_filter import entries, kubernetes_removed

RECORDED: Final = GOLDENS / "kubelet-packet-rules.json"
LOCAL: Final = {"family": "ip", "table": "filter"}
OWN: Final[list[dict[str, Any]]] = [
    {"rule": {**LOCAL, "chain": "INPUT", "handle": 90, "comment": "KUBE-FIREWALL", "expr": [{"drop": None}]}},
    {"rule": {**LOCAL, "chain": "INPUT", "handle": 91, "expr": [{"jump": {"target": "KUBERNETES"}}]}},
    {"chain": {**LOCAL, "name": "KUBERNETES", "handle": 92}},
]


def _removed(*more: dict[str, Any]) -> list[str]:
    recorded = json.loads(RECORDED.read_text())["nftables"]
    return kubernetes_removed(*entries(json.dumps({"nftables": [*recorded, *more]}))).splitlines()


def test_tables_that_hold_nothing_but_what_kubelet_made_go_whole() -> None:
    assert set(_removed()) == {
        f"delete table {family} {table}" for family in ("ip", "ip6") for table in ("filter", "mangle", "nat")
    }


def test_the_hosts_rules_beside_them_stay() -> None:
    lines = _removed(*OWN)
    ours = [line for line in lines if " ip filter" in line]
    assert ours == [
        "delete rule ip filter OUTPUT handle 3",
        "delete rule ip filter INPUT handle 5",
        "flush chain ip filter KUBE-FIREWALL",
        "flush chain ip filter KUBE-KUBELET-CANARY",
        "delete chain ip filter KUBE-FIREWALL",
        "delete chain ip filter KUBE-KUBELET-CANARY",
    ]


def test_a_policy_of_the_host_keeps_its_table() -> None:
    forbids = {"chain": {**LOCAL, "name": "FORWARD", "handle": 93, "hook": "forward", "policy": "drop"}}
    assert "delete table ip filter" not in _removed(forbids)
    allows = {"chain": {**LOCAL, "name": "FORWARD", "handle": 93, "hook": "forward", "policy": "accept"}}
    assert "delete table ip filter" in _removed(allows)


def test_a_table_without_chains_of_kubernetes_is_not_touched() -> None:
    firewall = [
        {"table": {"family": "inet", "name": "firewall", "handle": 1}},
        {"chain": {"family": "inet", "table": "firewall", "name": "KUBE-ALLOWED", "handle": 1}},
        {"table": {"family": "ip", "name": "raw", "handle": 2}},
        {"chain": {"family": "ip", "table": "raw", "name": "PREROUTING", "handle": 1, "hook": "prerouting"}},
    ]
    assert kubernetes_removed(*entries(json.dumps({"nftables": firewall}))) == ""
