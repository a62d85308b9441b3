"""`unbounded up --container-cloud` as its users run it, with the example of the reference."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from tests.cli.running import KUBECTL, up
from tests.support.paths import ROOT
from tests.support.waiting import eventually
from unbounded.api.container_cloud.machine import DeletionPolicy
from unbounded.cli.settings import UpSettings, add_up_arguments, up_settings_of
from unbounded.containercloud.settings import ContainerCloudSettings

EXAMPLE = ROOT / "examples" / "container-cloud" / "machine.yaml"


@pytest.mark.slow
@pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")
async def test_the_example_is_served_and_its_cluster_is_prepared(tmp_path: Path) -> None:
    async with up(tmp_path, "--container-cloud", "--min-other-managers", "0", "--port", "0") as plane:
        await plane.says(r"Ctrl-C stops")
        await plane.kubectl("apply", "--validate=strict", "-f", str(EXAMPLE))

        async def prepared() -> bool | None:
            cluster = await plane.get("clusters.cluster.k8s.io", "example-cluster", "--namespace", "example-ns")
            references = cluster.get("status", {}).get("providerStatus", {}).get("releaseRefs", {})
            machine = await plane.get("ma", "example-control-plane", "--namespace", "example-ns")
            index = machine.get("status", {}).get("providerStatus", {}).get("upgradeIndex")
            return (references.get("current", {}).get("name"), index) == ("example-17-3-0", 1) or None

        await eventually(prepared, within_s=60)
        configuration = await plane.get("mc", "example-cluster.example-ns")
        assert configuration["spec"]["template"]["kubernetes"] == {"version": "v1.34.0"}
        assert "LCMPHASE" in await plane.kubectl("get", "ma", "--all-namespaces")
        assert "PHASE" in await plane.kubectl("get", "machines")
        refused = await plane.kubectl("get", "ma", "example-control-plane", "-n", "example-ns", "-o", "name")
        assert refused == "machine.cluster.k8s.io/example-control-plane\n"
        await plane.stops()


@pytest.mark.slow
@pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")
async def test_definitions_of_others_are_not_overwritten(tmp_path: Path) -> None:
    async with up(tmp_path, "--port", "0") as plane:
        await plane.says(r"Ctrl-C stops")
        definition = (ROOT / "deploy/crd/container-cloud/metal3.io_baremetalhosts.yaml").read_text()
        foreign = tmp_path / "foreign.yaml"
        foreign.write_text(definition.replace("app.kubernetes.io/managed-by: unbounded", "app: metal3"))
        await plane.kubectl("apply", "-f", str(foreign))
        await plane.stops()
    async with up(tmp_path, "--container-cloud", "--port", "0") as plane:
        assert await plane.ended() == 1
        words = "definitions of other controllers: baremetalhosts.metal3.io; delete them, or omit --container-cloud"
        assert words in plane.printed


def parsed(*arguments: str) -> UpSettings:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_up_arguments(parser, {})
    return up_settings_of(parser.parse_args(arguments))


def test_container_cloud_is_off_and_has_the_defaults_of_the_reference() -> None:
    assert parsed().container_cloud is None
    assert parsed("--container-cloud").container_cloud == ContainerCloudSettings(
        shared_host_namespaces=("default",),
        default_deletion_policy=DeletionPolicy.UNSAFE,
        strict_distribution=False,
        min_other_managers=2,
    )


def test_each_flag_of_container_cloud_is_read() -> None:
    flags = ("--shared-host-namespaces", "default,stock", "--default-deletion-policy", "graceful")
    more = ("--strict-distribution", "--min-other-managers", "0", "--host-site", "rack1")
    assert parsed("--container-cloud", *flags, *more).container_cloud == ContainerCloudSettings(
        site="rack1",
        shared_host_namespaces=("default", "stock"),
        default_deletion_policy=DeletionPolicy.GRACEFUL,
        strict_distribution=True,
        min_other_managers=0,
    )


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("--default-deletion-policy", "careful", "'careful' is none of graceful, unsafe, forced"),
        ("--shared-host-namespaces", "A_B", "'A_B' is not a valid namespace name"),
        ("--min-other-managers", "-1", "'-1' is not a number from 0 to 100"),
        ("--host-site", "a b", "'a b' is not a valid label value"),
    ],
)
def test_a_flag_with_a_bad_value_is_refused(flag: str, value: str, words: str) -> None:
    with pytest.raises(argparse.ArgumentError, match=words):
        parsed("--container-cloud", f"{flag}={value}")


def test_a_flag_without_container_cloud_is_refused() -> None:
    with pytest.raises(ValueError, match="--min-other-managers needs --container-cloud"):
        parsed("--min-other-managers", "0")
