"""`kubectl unbounded site …`."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Final

from unbounded.cli.command_tables.install import add_cluster_arguments, add_dry_run, add_image_registry
from unbounded.cli.plugin.command import CliCommand
from unbounded.cli.plugin.flags import add_boolean, add_force, checked, limit

DAY_S: Final = 86400.0
NETWORK: Final = "Checked and ignored: no network is created"


def _init(parser: ArgumentParser) -> None:
    parser.add_argument("--name", required=True, metavar="SITE", help="Name the site: a label of its Machines")
    parser.add_argument(
        "--token-ttl",
        type=checked(limit),
        default=DAY_S,
        metavar="DURATION",
        help="Let hosts join for this time; run the command again for more (default 24h)",
    )
    add_boolean(parser, "--enable-machina", default=True, help="Run machina, which sets up hosts over SSH")
    add_boolean(parser, "--enable-metalman", default=False, help="Run a metalman in the site, for bare metal")
    parser.add_argument(
        "--machina-manifests",
        default="",
        metavar="PLACE",
        help="Read manifests from this directory, tar.gz or https URL (default: those of this version)",
    )
    add_cluster_arguments(parser)
    add_image_registry(parser)
    for flag in ("--cluster-node-cidr", "--cluster-pod-cidr", "--node-cidr", "--pod-cidr"):
        parser.add_argument(flag, default="", metavar="CIDR", help=NETWORK)
    add_boolean(parser, "--manage-cni-plugin", default=True, help=NETWORK)
    parser.add_argument(
        "--cni-manifests", default="", metavar="PLACE", help="Checked and ignored: no network is created"
    )
    add_boolean(parser, "--enable-storage", default=False, help="Checked and ignored: no storage is created")


def _delete(parser: ArgumentParser) -> None:
    parser.add_argument("--name", required=True, metavar="SITE", help="Name the site")
    add_force(parser, "the name of the site")


def _deploy_pxe(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--site", required=True, help="Name the site whose machines boot from it; its nodes have this label"
    )
    add_image_registry(parser)
    parser.add_argument(
        "--image",
        default="",
        metavar="IMAGE",
        help="Use this image of metalman (default: this version, from --image-registry)",
    )
    _serving_flags(parser)
    _boot_flags(parser)
    _media_flags(parser)
    parser.add_argument(
        "--pcr-policy",
        default="",
        metavar="POLICY",
        help="Set the consequence of a boot whose PCRs deviate from the first one's: Required (no token) or Recorded "
        "(a condition, default)",
    )
    add_dry_run(parser)


def _serving_flags(parser: ArgumentParser) -> None:
    """Add the flags about DHCP, and the ports of the servers."""
    parser.add_argument(
        "--interface",
        default="",
        metavar="NAME",
        help="Serve DHCP on this interface of the node (default: the one that machines reach)",
    )
    parser.add_argument(
        "--dhcp-relay",
        action="append",
        default=[],
        metavar="CIDR",
        help="Accept packets only from the DHCP relay with this address (giaddr). Repeatable",
    )
    parser.add_argument(
        "--dhcp-mode",
        default="",
        metavar="MODE",
        help="Set the DHCP mode. proxy: another DHCP server on the segment assigns the addresses of "
        "spec.pxe.dhcpLeases (default auto)",
    )
    for name in ("http", "tftp", "dhcp"):
        parser.add_argument(
            f"--{name}-port", default="", metavar="PORT", help=f"Serve {name.upper()} on this port of the node"
        )


def _boot_flags(parser: ArgumentParser) -> None:
    """Add the flags about what boots get, and must prove."""
    parser.add_argument(
        "--cluster-dns",
        default="",
        metavar="ADDRESS",
        help="Give nodes this DNS server, for clusters without Service kube-dns",
    )
    parser.add_argument(
        "--artifact-mirror",
        default="",
        metavar="URL",
        help="Set the download mirror of hosts whose Machine names none",
    )
    parser.add_argument(
        "--allow-profile-scripts",
        nargs="?",
        const="true",
        default="",
        metavar="BOOL",
        help="Run the scripts of MachineProfiles, and the commands in their modprobe.d files, on installed hosts",
    )
    parser.add_argument(
        "--keep-console-output",
        default="",
        metavar="BOOL",
        help="Keep the last 64 KiB of the serial console of a boot that failed in a Secret, without the secrets that "
        "metalman recognizes (default: true)",
    )
    parser.add_argument(
        "--ek-ca",
        default="",
        metavar="FILE",
        help="Require a TPM certificate that chains to the roots in this PEM file",
    )


def _media_flags(parser: ArgumentParser) -> None:
    """Add the flags about boot images that BMCs mount as virtual media."""
    parser.add_argument(
        "--media-secret",
        default="",
        metavar="NAME",
        help="Serve boot images to BMCs by HTTPS with the certificate in this Secret of unbounded-kube (type "
        "kubernetes.io/tls), for Machines with spec.pxe.bootMode VirtualMedia",
    )
    parser.add_argument(
        "--media-url",
        default="",
        metavar="URL",
        help="Set the URL at which BMCs reach the boot images; its host is in the certificate (default: https:// with "
        "the node's address)",
    )
    parser.add_argument("--media-port", default="", metavar="PORT", help="Serve boot images on this port of the node")
    parser.add_argument(
        "--media-ticket-lifetime",
        default="",
        metavar="DURATION",
        help="Expire the URL of a boot image after this time, from 10m to 24h (default 1h)",
    )


def _serve_pxe(parser: ArgumentParser) -> None:
    from unbounded.cli.deploy.sites import add_pxe_arguments  # noqa: PLC0415  # metalman's flags come with it

    add_pxe_arguments(parser)


COMMANDS: Final = (
    CliCommand(
        path=("site", "init"),
        help="Create the controllers and the bootstrap token that a site's hosts need to join",
        examples=(
            ("site init --name rack1", "let hosts of rack1 join for a day; run it again for another day"),
            ("site init --name rack1 --token-ttl 168h", "let them join for a week"),
        ),
        arguments=_init,
        run="unbounded.cli.deploy.sites:init",
    ),
    CliCommand(
        path=("site", "delete"),
        help="Delete the controllers and tokens of a site without Machines",
        text=(
            "Delete the metalman, the machine-ops-controller and the bootstrap tokens of a site. The command "
            "fails while the site has Machines. Secrets and credentials of the site stay; the command lists "
            "them."
        ),
        examples=(("site delete --name rack1 --force", "delete it; do not ask for the name of the site"),),
        arguments=_delete,
        run="unbounded.cli.deploy.uninstall:delete_site",
    ),
    CliCommand(
        path=("site", "deploy-pxe"),
        help="Run metalman on a node of a site, for network boots of its machines",
        examples=(("site deploy-pxe --site rack1 --dry-run server -o yaml", "print what would be deployed"),),
        arguments=_deploy_pxe,
        run="unbounded.cli.deploy.sites:deploy_pxe",
    ),
    CliCommand(
        path=("site", "serve-pxe"),
        help="Run metalman for a site on this machine; its flags are those of `metalman serve-pxe`",
        examples=(("site serve-pxe --site rack1 --dhcp-interface eth1", "serve network boots until Ctrl-C"),),
        arguments=_serve_pxe,
        run="unbounded.cli.deploy.sites:serve_pxe",
        needs_api=False,
    ),
)
