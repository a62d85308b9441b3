"""The Machine under Go's names, as templates of netboot images use it."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pytest

from unbounded.api.machine import Machine
from unbounded.gotemplate import RenderError, Template
from unbounded.metalman.netboot.template_context import TemplateContext, template_data

MANIFEST: Final[dict[str, Any]] = {
    "apiVersion": "unbounded-cloud.io/v1alpha3",
    "kind": "Machine",
    "metadata": {"name": "node-1", "uid": "u-1", "generation": 3, "labels": {"unbounded-cloud.io/site": "lab"}},
    "spec": {
        "pxe": {
            "image": "registry.example/host:v1",
            "dhcpLeases": [
                {
                    "ipv4": "10.0.0.5",
                    "mac": "52:54:00:aa:bb:01",
                    "subnetMask": "255.255.255.0",
                    "gateway": "10.0.0.1",
                    "dns": ["10.0.0.2", "10.0.0.3"],
                }
            ],
            "redfish": {
                "url": "https://bmc.example",
                "username": "admin",
                "passwordRef": {"name": "bmc", "namespace": "unbounded-kube"},
            },
        },
        "operations": {"repaveCounter": 2},
    },
    "status": {"operations": {"repaveCounter": 1}},
}
AROUND: Final = TemplateContext(
    apiserver_url="https://api.example:6443",
    serve_url="http://10.0.0.1:8880",
    kubernetes_version="v1.34.0",
    cluster_dns="10.96.0.10",
    agent_config_json='{"a": 1}',
)
GRUB: Final = """\
set default=0
{{- $lease := index .Machine.Spec.PXE.DHCPLeases 0 }}
{{- $wanted := 0 }}{{ with .Machine.Spec.Operations }}{{ $wanted = .RepaveCounter }}{{ end }}
{{- $done := 0 }}{{ with .Machine.Status.Operations }}{{ $done = .RepaveCounter }}{{ end }}
{{- if gt $wanted $done }}
set timeout=0
menuentry "install {{ .Machine.Name }}" {
  linux vmlinuz serve_url={{ .ServeURL }} node_name={{ .Machine.Name }} apiserver_url={{ .ApiserverURL }} \
ip={{ $lease.IPv4 }}::{{ $lease.Gateway }}:{{ $lease.SubnetMask }}::eth0:none{{ range $lease.DNS }} dns={{ . }}{{ end }}
  initrd initrd init.cpio
}
{{- else }}
chainloader /EFI/ubuntu/shimx64.efi
{{- end }}
"""


def machine(**changes: Any) -> Machine:
    return msgspec.convert({**MANIFEST, **changes}, Machine)


def rendered(text: str, **changes: Any) -> str:
    return Template("t", text).render(template_data(machine(**changes), AROUND))


def test_a_grub_file_installs_while_a_repave_is_wanted() -> None:
    assert rendered(GRUB) == (
        "set default=0\nset timeout=0\n"
        'menuentry "install node-1" {\n'
        "  linux vmlinuz serve_url=http://10.0.0.1:8880 node_name=node-1 apiserver_url=https://api.example:6443"
        " ip=10.0.0.5::10.0.0.1:255.255.255.0::eth0:none dns=10.0.0.2 dns=10.0.0.3\n"
        "  initrd initrd init.cpio\n}\n"
    )


def test_a_grub_file_boots_the_disk_when_no_repave_is_wanted() -> None:
    done = rendered(GRUB, status={"operations": {"repaveCounter": 2}})
    assert done == "set default=0\nchainloader /EFI/ubuntu/shimx64.efi\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{{.Machine.Name}} {{.Machine.ObjectMeta.Name}} {{.Machine.UID}}", "node-1 node-1 u-1"),
        ("{{.Machine.Kind}} {{.Machine.APIVersion}}", "Machine unbounded-cloud.io/v1alpha3"),
        ('{{index .Machine.Labels "unbounded-cloud.io/site"}}', "lab"),
        ("[{{.Machine.Namespace}}] [{{.Machine.Spec.Provider}}]", "[] []"),
        ("{{.Machine.Spec.SSH}} {{if .Machine.Spec.SSH}}yes{{else}}no{{end}}", "<nil> no"),
        ("{{.Machine.Spec.PXE.Redfish.URL}} {{.Machine.Spec.PXE.Redfish.DeviceID}}", "https://bmc.example 1"),
        ("{{.Machine.Spec.PXE.TargetArchitecture}} {{.Machine.Spec.PXE.TargetBootProtocol}}", "amd64 PXE"),
        ("{{range .Machine.Spec.PXE.DHCPLeases}}{{.MAC}} {{.DNS}}{{end}}", "52:54:00:aa:bb:01 [10.0.0.2 10.0.0.3]"),
        ('{{printf "%T %T" .Machine .Machine.Spec.PXE}}', "*v1alpha3.Machine *v1alpha3.PXESpec"),
        (
            "{{.InstallerNetwork}}",
            "unbounded.lease=52:54:00:aa:bb:01,10.0.0.5,255.255.255.0,10.0.0.1"
            " unbounded.dns=10.0.0.2 unbounded.dns=10.0.0.3",
        ),
        ("{{.ClusterDNS}} {{.KubernetesVersion}} {{.AgentConfigJSON}}", '10.96.0.10 v1.34.0 {"a": 1}'),
    ],
)
def test_fields_have_the_names_of_go(text: str, expected: str) -> None:
    assert rendered(text) == expected


def test_disks_are_marked_with_the_uid_that_outlives_a_migration() -> None:
    moved = rendered("{{.Machine.UID}} {{.Machine.ObjectMeta.UID}}", status={"originalUID": "u-0"})
    assert moved == "u-0 u-0"


def test_template_error_names_file_line_and_field() -> None:
    template = Template("grub/grub.cfg", "set timeout=0\nmac={{ .Machine.Spec.PXE.Image }}\n")
    with pytest.raises(RenderError) as failed:
        template.render(template_data(machine(spec={}), AROUND))
    assert str(failed.value) == (
        'template: grub/grub.cfg:2:15: executing "grub/grub.cfg" at <.Machine.Spec.PXE.Image>: '
        "nil pointer evaluating *v1alpha3.PXESpec.Image"
    )


def test_an_unknown_field_is_named_with_its_type() -> None:
    with pytest.raises(RenderError, match=r"can't evaluate field Mac in type v1alpha3\.DHCPLease$"):
        rendered("{{range .Machine.Spec.PXE.DHCPLeases}}{{.Mac}}{{end}}")


def test_a_machine_can_be_printed_whole() -> None:
    assert "DHCPLeases:[{IPv4:10.0.0.5 MAC:52:54:00:aa:bb:01" in rendered('{{printf "%+v" .Machine.Spec.PXE}}')
    assert rendered("{{.Machine}}").startswith("{Machine unbounded-cloud.io/v1alpha3 {node-1 ")
