"""Objects of the project's processes, with their names, labels and namespace. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

import yaml

from unbounded.api.names import LABEL_SITE, NAMESPACE
from unbounded.cli.deploy.pods import PART_OF

Raw = dict[str, Any]

CONFIG_FILE: Final = "config.yaml"
CONFIG_DIGEST: Final = "unbounded-cloud.io/config-digest"  # on Pods: a changed configuration rolls the Pods out again


def selector_of(component: str, site: str = "") -> dict[str, str]:
    """Return the labels that select the Pods of a component, of one site where one is given."""
    return {"app.kubernetes.io/name": component} | ({LABEL_SITE: site} if site else {})


def metadata(name: str, selector: Mapping[str, str]) -> Raw:
    return {"name": name, "namespace": NAMESPACE, "labels": {**selector, **PART_OF}}


def deployment(
    name: str,
    selector: Mapping[str, str],
    pod: Raw,
    *,
    replicas: int,
    annotations: Mapping[str, str] | None = None,
    strategy: Raw | None = None,
) -> Raw:
    meta: Raw = {"labels": {**selector, **PART_OF}}
    if annotations:
        meta["annotations"] = dict(annotations)
    spec: Raw = {
        "replicas": replicas,
        "selector": {"matchLabels": dict(selector)},
        "template": {"metadata": meta, "spec": pod},
    }
    if strategy is not None:
        spec["strategy"] = strategy
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(name, selector),
        "spec": spec,
    }


def service(name: str, selector: Mapping[str, str], port: Mapping[str, Any], *, headless: bool = False) -> Raw:
    spec: Raw = {"selector": dict(selector), "ports": [{"protocol": "TCP", **port}]}
    if headless:
        spec["clusterIP"] = "None"
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(name, selector),
        "spec": spec,
    }


def budget(name: str, selector: Mapping[str, str]) -> Raw:
    """Return the budget: one process may be evicted at a time, as another one takes the lead."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(name, selector),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": dict(selector)}},
    }


def config_map(name: str, selector: Mapping[str, str], config: Mapping[str, Any]) -> Raw:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(name, selector),
        "data": {CONFIG_FILE: config_text(config)},
    }


def config_text(config: Mapping[str, Any]) -> str:
    """Return the text of the configuration file."""
    text: str = yaml.safe_dump(dict(config), sort_keys=True)
    return text


def config_digest(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the annotation that replaces Pods after a change of their configuration, which they read once."""
    return {CONFIG_DIGEST: digest_of(config_text(config))}


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def copied(part: Any) -> Any:
    return json.loads(json.dumps(part))
