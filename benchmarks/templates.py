"""Rate of rendering netboot GRUB files: `python -m benchmarks.templates [--quick]`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from benchmarks.frame import Limit, Measured, run_benchmark
from unbounded.api.machine import Machine
from unbounded.gotemplate import Template
from unbounded.metalman.netboot.template_context import TemplateContext, template_data

AMOUNT: Final = "{renders:g} renders of a GRUB file"
RENDERS: Final = 50_000
QUICK: Final = 2_000
LIMITS: Final[Mapping[str, Limit]] = {
    "renders_per_second": Limit("netboot GRUB files rendered per second, compiled once", aim=10_000),
    "render_vs_plain_format": Limit("time of a render, over that of the same text by str.format", most=100.0),
}
GRUB: Final = """\
set default=0
set timeout=0
{{- $lease := index .Machine.Spec.PXE.DHCPLeases 0 }}
menuentry "install {{ .Machine.Name }}" {
  linux vmlinuz unbounded.image_url={{ .ServeURL }}/disk.img.gz unbounded.serve_url={{ .ServeURL }} \\
    unbounded.node_name={{ .Machine.Name }} unbounded.apiserver_url={{ .ApiserverURL }} \\
    ip={{ $lease.IPv4 }}::{{ $lease.Gateway }}:{{ $lease.SubnetMask }}::eth0:none console=ttyS0,115200n8
  initrd initrd init.cpio
}
"""
PLAIN: Final = """\
set default=0
set timeout=0
menuentry "install {name}" {{
  linux vmlinuz unbounded.image_url={serve}/disk.img.gz unbounded.serve_url={serve} \\
    unbounded.node_name={name} unbounded.apiserver_url={api} \\
    ip={lease.ipv4}::{lease.gateway}:{lease.subnet_mask}::eth0:none console=ttyS0,115200n8
  initrd initrd init.cpio
}}
"""


async def measure(quick: bool) -> Measured:
    """Render one file repeatedly, and the same text without a template language."""
    renders = QUICK if quick else RENDERS
    machine = _machine()
    around = TemplateContext(
        apiserver_url="https://api.example:6443",
        serve_url="http://10.0.0.1:8880",
        kubernetes_version="v1.34.0",
        cluster_dns="10.96.0.10",
        agent_config_json="{}",
    )
    template = Template("grub/grub.cfg", GRUB)

    def render() -> str:
        return template.render(template_data(machine, around))

    def plain() -> str:
        leases = machine.spec.pxe.dhcp_leases if machine.spec.pxe else ()
        return PLAIN.format(name=machine.name, serve=around.serve_url, api=around.apiserver_url, lease=leases[0])

    if render() != plain():
        raise RuntimeError("the two render different texts")
    rendered, formatted = _seconds(render, renders), _seconds(plain, renders)
    return Measured(
        figures={"renders": renders, "renders_per_second": renders / rendered, "render_us": 1e6 * rendered / renders},
        ratios={"render_vs_plain_format": rendered / formatted},
    )


def _seconds(call: Callable[[], str], times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        call()
    return time.perf_counter() - start


def _machine() -> Machine:
    lease = {"ipv4": "10.0.0.5", "mac": "52:54:00:aa:bb:01", "subnetMask": "255.255.255.0", "gateway": "10.0.0.1"}
    spec = {"pxe": {"image": "registry.example/host:v1", "dhcpLeases": [lease]}}
    return msgspec.convert({"metadata": {"name": "node-1"}, "spec": spec}, Machine)


if __name__ == "__main__":
    run_benchmark("templates", measure)
