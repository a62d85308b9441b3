"""`why` from a Machine of Container Cloud over its host, our Machine and its HostReplace to a BMC over HTTPS."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.cli import test_lab_hosts as lab_hosts
from tests.cli.running import KUBECTL
from tests.containercloud import test_lab_host as container_cloud
from tests.support.waiting import eventually
from unbounded.api.container_cloud.host import BARE_METAL_HOSTS
from unbounded.api.container_cloud.machine import CONTAINER_CLOUD_MACHINES
from unbounded.explain.chain import explain
from unbounded.explain.links import ExplainLink, Topic
from unbounded_lab.bmc.local import LabBmc
from unbounded_lab.faults import FOR_EVER

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed"),
]
PROJECT: Final = container_cloud.PROJECT
NEVER_PUSHED: Final = "ubuntu/absent"
WITHIN_S: Final = 150.0


@dataclass(frozen=True)
class Lab:
    """A site of `unbounded up` whose Machines wait for a template until their BMC is broken."""

    site: lab_hosts.Site

    @asynccontextmanager
    async def claimed(self, name: str, distribution: str = "ubuntu/jammy") -> AsyncIterator[LabBmc]:
        """Have a Machine claim a host of its own name; its install waits for an L2Template."""
        async with container_cloud.lab_bmc(name, self.site.authority) as bmc:
            await container_cloud.in_stock(self.site, bmc)
            fields: dict[str, Any] = {"l2TemplateSelector": {"name": name}, "distribution": distribution}
            await self.site.running.apply(container_cloud.machine(name, name, **fields))
            await container_cloud.status_when(
                self.site.running, CONTAINER_CLOUD_MACHINES, PROJECT, name, "execution.waiting.reason", "NoTemplate"
            )
            yield bmc

    async def install(self, name: str) -> None:
        """Create the template that a Machine waits for."""
        (template,) = (one for one in container_cloud.around(self.site.image) if one["metadata"]["name"] == "t")
        meta = {"name": name, "namespace": PROJECT, "labels": container_cloud.CLUSTER}
        await self.site.running.apply(template | {"metadata": meta})

    async def chain(self, name: str, holds: Callable[[tuple[ExplainLink, ...]], bool]) -> tuple[ExplainLink, ...]:
        """Wait until the explanation of a Machine is as the predicate says; return its links."""
        last: list[tuple[ExplainLink, ...]] = []

        async def check() -> tuple[ExplainLink, ...] | None:
            last[:] = [(await explain(self.site.api, Topic.CLAIM, name, namespace=PROJECT)).links]
            return last[0] if holds(last[0]) else None

        def shown() -> Any:
            return [(one.about, one.what, one.code) for links in last for one in links]

        found: tuple[ExplainLink, ...] = await eventually(check, shown, within_s=WITHIN_S, every_s=0.2)
        return found


def topics(links: tuple[ExplainLink, ...]) -> list[str]:
    return [f"{link.topic} {link.name}" for link in links]


def ends_at(words: str, *, steps: int) -> Callable[[tuple[ExplainLink, ...]], bool]:
    """Return the predicate of a chain of some length whose last link says something."""
    return lambda links: len(links) == steps and words in links[-1].what


async def password(lab: Lab) -> None:
    """A password that a person has changed at the BMC itself."""
    async with lab.claimed("password") as bmc:
        bmc.bmc.access.change_password("changed by hand")
        bmc.bmc.access.forget_sessions()
        await lab.install("password")
        is_whole = ends_at(bmc.url, steps=3)
        links = await lab.chain("password", lambda links: is_whole(links) and "(Backoff)" in links[0].what)
        operation = links[-1].name
        assert topics(links) == ["claim password", "host password", f"operation {operation}"]
        machine, host, replace = links
        assert machine.what.startswith(f"Provision (Backoff): HostReplace {operation} failed: CredentialsRefused: ")
        assert (machine.code, bool(machine.until)) == ("InstallFailed", True)
        assert host.what == (
            "provisioning: used by Machine example-ns/password; the BMC rejected user "
            f"{bmc.username} and the password of its Secret"
        )
        assert replace.what.startswith(f"HostReplace has ended: Failed/CredentialsRefused: {bmc.url} rejected ")
        assert replace.fixes[0].command == "kubectl unbounded why bmh/password -n default"
        command, *words = shlex.split(host.fixes[0].command.replace("PASSWORD", "changed by hand"))
        assert (command, words[:3]) == ("kubectl", ["patch", "bmhc", "password"])
        await lab.site.running.kubectl(*words)

        async def is_cured() -> bool:
            found = await lab.site.api.get(BARE_METAL_HOSTS, "password", namespace="default")
            return not found.status.error_message

        await eventually(is_cured, within_s=WITHIN_S, every_s=0.2)
        await lab.chain("password", lambda links: all("rejected user" not in link.what for link in links))


async def unreachable(lab: Lab) -> None:
    """A BMC that is taken from the network, and comes back."""
    async with lab.claimed("unreachable") as bmc:
        await bmc.set_faults(refused_s=FOR_EVER)
        await lab.install("unreachable")
        links = await lab.chain("unreachable", ends_at(f"{bmc.url}: connection refused", steps=4))
        operation = links[-1].name
        assert topics(links) == [
            "claim unreachable",
            "host unreachable",
            "machine unreachable.default",
            f"operation {operation}",
        ]
        claim, host, machine, replace = links
        assert claim.what == f"Provision (Provisioning): HostReplace {operation} installs the host"
        assert (claim.code, claim.held_by) == ("Installing", f"HostReplace {operation}")
        assert host.what.startswith("provisioning: used by Machine example-ns/unreachable")
        assert machine.what == f"Provisioning: HostReplace {operation} by metalman/lab"
        assert (replace.code, replace.held_by) == ("NoAnswer", "metalman/lab")
        assert replace.what.startswith("HostReplace on Machine unreachable.default, stage ")
        await bmc.set_faults(refused_s=0.0)
        await lab.chain("unreachable", lambda links: "connection refused" not in links[-1].what)


async def no_image(lab: Lab) -> None:
    """A boot server whose registry has no such image."""
    async with lab.claimed("no-image", NEVER_PUSHED):
        await lab.install("no-image")
        links = await lab.chain("no-image", ends_at("404 Not Found (MANIFEST_UNKNOWN", steps=5))
        operation = links[-2].name
        assert topics(links) == [
            "claim no-image",
            "host no-image",
            "machine no-image.default",
            f"operation {operation}",
            "condition no-image.default",
        ]
        assert links[0].what == f"Provision (Provisioning): HostReplace {operation} installs the host"
        assert links[1].what == "provisioning: used by Machine example-ns/no-image"
        assert links[2].what == f"Provisioning: HostReplace {operation} by metalman/lab"
        assert ":never-pushed" in links[3].what
        assert (links[-1].code, links[-1].held_by) == ("PullFailed", "condition NetbootImageReady=False (PullFailed)")


async def test_each_link_from_a_machine_to_its_bmc_is_named(tmp_path: Path) -> None:
    async with lab_hosts.site(tmp_path, *container_cloud.FLAGS) as site:
        objects = container_cloud.around(site.image)
        absent = {"id": NEVER_PUSHED, "image": {"url": site.image.replace(":v1", ":never-pushed")}}
        for one in objects:
            if one["kind"] == "ClusterRelease":
                one["spec"]["allowedDistributions"].append(absent)
        await site.running.apply(*objects)
        lab = Lab(site)
        await asyncio.gather(password(lab), unreachable(lab), no_image(lab))
        assert "Traceback" not in site.running.printed
