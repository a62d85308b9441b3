"""Manifests of lab machines: what a user applies."""

from __future__ import annotations

from base64 import b64decode
from dataclasses import dataclass

import msgspec
import yaml

from unbounded.api.machine import Machine
from unbounded_lab.machines import manifests, to_yaml


@dataclass(frozen=True)
class OneBmc:
    device_ids: tuple[str, ...] = ("1",)
    name: str = "lab-01"
    url: str = "https://127.0.0.1:8443"
    username: str = "admin"
    password: str = "a: password"


def test_a_machine_names_its_bmc_and_the_secret_with_the_password() -> None:
    secret, machine = yaml.safe_load_all(to_yaml(manifests([OneBmc()])))
    read = msgspec.convert(machine, Machine)
    assert (read.name, read.site) == ("lab-01", "lab")
    assert read.spec.pxe is not None
    assert read.spec.pxe.image
    redfish = read.spec.pxe.redfish
    assert redfish is not None
    assert (redfish.url, redfish.username, redfish.device_id) == ("https://127.0.0.1:8443", "admin", "1")
    reference = redfish.password_ref
    assert (reference.namespace, reference.name) == ("unbounded-kube", secret["metadata"]["name"])
    assert secret["metadata"]["namespace"] == "unbounded-kube"
    assert b64decode(secret["data"][reference.key]).decode() == "a: password"


def test_a_system_of_another_name_is_named() -> None:
    _, machine = manifests([OneBmc(("System.Embedded.1",))])
    assert machine["metadata"]["name"] == "lab-01"
    assert machine["spec"]["pxe"]["redfish"]["deviceID"] == "System.Embedded.1"


def test_several_systems_of_a_bmc_are_several_machines_with_one_secret() -> None:
    secret, *machines = manifests([OneBmc(("Node1", "Node_2"))])
    assert [machine["metadata"]["name"] for machine in machines] == ["lab-01-node1", "lab-01-node-2"]
    redfish = [machine["spec"]["pxe"]["redfish"] for machine in machines]
    assert [each["deviceID"] for each in redfish] == ["Node1", "Node_2"]
    assert {each["passwordRef"]["name"] for each in redfish} == {secret["metadata"]["name"]}
