"""Sources of images, and the settings of a cluster's machina: pure."""

from __future__ import annotations

import re
from importlib.metadata import version
from typing import Any

import pytest

from unbounded.api.fields import DNS_LABEL
from unbounded.cli.deploy.live_machina import chosen_image, image_in, mounted_config, repository
from unbounded.cli.deploy.machine_ops import running_as
from unbounded.cli.deploy.workloads import (
    MACHINA_CONFIG,
    MachineOpsWorkload,
    machina_deployment,
    machine_ops_deployment,
)
from unbounded.cli.plugin.command import USAGE, CliError

TAG = f"v{version('unbounded')}"


@pytest.mark.parametrize(
    ("image", "place"),
    [
        ("ghcr.io/azure/machina:v0.1.0", "ghcr.io/azure/machina"),
        ("registry.example.com:5000/machina", "registry.example.com:5000/machina"),
        ("registry.example.com:5000/a/machina:v1@sha256:abc", "registry.example.com:5000/a/machina"),
        ("machina:dev", "machina"),
    ],
)
def test_an_image_without_its_tag(image: str, place: str) -> None:
    assert repository(image) == place


CHOICES: list[tuple[dict[str, str], str]] = [
    ({"image": "mine:1", "registry": "r.example.com", "there": "x/y:1"}, "mine:1"),
    ({"registry": "r.example.com/", "there": "x/y:1", "beside": "x/z:1"}, f"r.example.com/metalman:{TAG}"),
    ({"there": "r.example.com:5000/our-metalman:old", "beside": "x/z:1"}, f"r.example.com:5000/our-metalman:{TAG}"),
    ({"beside": "r.example.com:5000/a/machina@sha256:abc"}, f"r.example.com:5000/a/metalman:{TAG}"),
    ({"beside": "machina:dev"}, f"metalman:{TAG}"),
]


@pytest.mark.parametrize(("given", "image"), CHOICES, ids=range(len(CHOICES)))
def test_image_comes_from_the_flag_or_else_the_present_registry(given: dict[str, str], image: str) -> None:
    assert chosen_image("metalman", **given) == image


def test_an_image_that_nothing_names_is_not_made_up() -> None:
    with pytest.raises(CliError, match="no image is known for metalman") as refused:
        chosen_image("metalman")
    assert refused.value.status == USAGE
    for named in ("`make release`", f"REGISTRY/metalman:{TAG}", "--image-registry REGISTRY"):
        assert named in refused.value.next_step


def test_the_configuration_is_the_one_that_is_mounted() -> None:
    def config_of(body: dict[str, Any]) -> str:
        return mounted_config(body, "machina", MACHINA_CONFIG)

    deployment: dict[str, Any] = machina_deployment("machina:1")
    assert (config_of(deployment), image_in(deployment, "machina")) == (MACHINA_CONFIG, "machina:1")
    (volume,) = [one for one in deployment["spec"]["template"]["spec"]["volumes"] if one["name"] == "config"]
    volume["configMap"]["name"] = "machina-config-7k2g5c9h4t"
    assert config_of(deployment) == "machina-config-7k2g5c9h4t"
    volume["emptyDir"] = volume.pop("configMap")
    assert (config_of(deployment), config_of({}), image_in({}, "machina")) == (MACHINA_CONFIG, MACHINA_CONFIG, "")


@pytest.mark.parametrize(
    ("other", "shared"),
    [
        (("", ""), True),
        (("west", ""), True),
        (("", "AzureVM"), True),
        (("west", "AzureVM"), True),
        (("east", ""), False),
        (("", "OCIInstance"), False),
        (("east", "AzureVM"), False),
        (("west", "OCIInstance"), False),
    ],
)
def test_two_deployments_share_machines_where_no_site_and_no_provider_parts_them(
    other: tuple[str, str], shared: bool
) -> None:
    one, two = MachineOpsWorkload("image", "west", "AzureVM"), MachineOpsWorkload("image", *other)
    assert (one.shares_with(two), two.shares_with(one)) == (shared, shared)


@pytest.mark.parametrize(
    "written", [("--site=west", "--provider=AzureVM"), ("--site", "west", "--provider", "AzureVM")]
)
def test_scope_of_a_deployment_is_read_from_its_arguments(written: tuple[str, ...]) -> None:
    body = machine_ops_deployment(
        MachineOpsWorkload("registry.example.com/machine-ops-controller:v1", "west", "AzureVM")
    )
    args = body["spec"]["template"]["spec"]["containers"][0]["args"]
    args[3:] = written
    found = running_as(body)
    assert (found.scope, found.ours) == (
        MachineOpsWorkload("registry.example.com/machine-ops-controller:v1", "west", "AzureVM"),
        True,
    )
    args[3:] = ["--provider=AzureVM"]  # a user has changed it: by its name it is another one
    assert not running_as(body).ours


def test_similar_scopes_get_distinct_deployment_names_valid_for_services() -> None:
    names = [
        MachineOpsWorkload("image", *scope).name
        for scope in (("", "Acme_VM"), ("", "Acme.VM"), ("", "Acme-VM"), ("west", "A.cme_VM"))
    ]
    assert len(set(names)) == len(names)
    assert names[2] == "machine-ops-controller-acme-vm"
    for name in names:
        assert re.fullmatch(DNS_LABEL, name)
