"""`kubectl unbounded site …`."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Final

from unbounded.cli.commands.install import add_cluster_arguments, add_dry_run, add_image_registry
from unbounded.cli.plugin.command import CliCommand
from unbounded.cli.plugin.flags import add_boolean, add_force, checked, limit

DAY_S: Final = 86400.0
NETWORK: Final = "checked, and not used: no network is made"


def _init(parser: ArgumentParser) -> None:
    parser.add_argument("--name", required=True, metavar="SITE", help="of the site: a label of its Machines")
    parser.add_argument(
        "--token-ttl",
        type=checked(limit),
        default=DAY_S,
        metavar="DURATION",
        help="for how long hosts can join; run this again for longer (24h)",
    )
    add_boolean(parser, "--enable-machina", default=True, help="run machina, which sets hosts up over SSH")
    add_boolean(parser, "--enable-metalman", default=False, help="run a metalman in the site, for bare metal")
    parser.add_argument(
        "--machina-manifests",
        default="",
        metavar="PLACE",
        help="folder, tar.gz or https URL, in place of the manifests of this version",
    )
    add_cluster_arguments(parser)
    add_image_registry(parser)
    for flag in ("--cluster-node-cidr", "--cluster-pod-cidr", "--node-cidr", "--pod-cidr"):
        parser.add_argument(flag, default="", metavar="CIDR", help=NETWORK)
    add_boolean(parser, "--manage-cni-plugin", default=True, help=NETWORK)
    parser.add_argument("--cni-manifests", default="", metavar="PLACE", help="not used: no network is made")
    add_boolean(parser, "--enable-storage", default=False, help="not used: no storage is made")


def _delete(parser: ArgumentParser) -> None:
    parser.add_argument("--name", required=True, metavar="SITE", help="of the site")
    add_force(parser, "the name of the site")


def _deploy_pxe(parser: ArgumentParser) -> None:
    parser.add_argument("--site", required=True, help="whose machines boot from it; its nodes have it as a label")
    add_image_registry(parser)
    parser.add_argument(
        "--image", default="", metavar="IMAGE", help="of metalman (this version, from --image-registry)"
    )
    parser.add_argument(
        "--interface", default="", metavar="NAME", help="of the node, for DHCP (the one that machines reach)"
    )
    parser.add_argument(
        "--dhcp-relay",
        action="append",
        default=[],
        metavar="CIDR",
        help="address of a DHCP relay (giaddr), so that no other one is answered; may be given several times",
    )
    parser.add_argument(
        "--dhcp-mode",
        default="",
        metavar="MODE",
        help="proxy: another DHCP server on the segment gives the addresses, those of spec.pxe.dhcpLeases (auto)",
    )
    for name in ("http", "tftp", "dhcp"):
        parser.add_argument(f"--{name}-port", default="", metavar="PORT", help=f"of {name.upper()} on the node")
    parser.add_argument(
        "--cluster-dns", default="", metavar="ADDRESS", help="what nodes are told where there is no Service kube-dns"
    )
    parser.add_argument(
        "--ek-ca", default="", metavar="FILE", help="PEM with roots that the certificate of a TPM must chain to"
    )
    add_dry_run(parser)


def _serve_pxe(parser: ArgumentParser) -> None:
    from unbounded.cli.deploy.serve_pxe import add_pxe_arguments  # noqa: PLC0415  # metalman's flags come with it

    add_pxe_arguments(parser)


COMMANDS: Final = (
    CliCommand(
        path=("site", "init"),
        help="have all that hosts of a site need to join: controllers, and a bootstrap token",
        examples=(
            ("site init --name rack1", "hosts of rack1 can join for a day; run again, for another one"),
            ("site init --name rack1 --token-ttl 168h", "for a week"),
        ),
        arguments=_init,
        run="unbounded.cli.deploy.sites:init",
    ),
    CliCommand(
        path=("site", "delete"),
        help="delete the controllers and tokens of a site that has no Machine left",
        text=(
            "Delete the metalman, the machine-ops-controller and the bootstrap tokens of a site. It is refused while"
            " the site has Machines. Secrets and credentials of the site stay, and are listed."
        ),
        examples=(("site delete --name rack1 --force", "without asking for the name of the site"),),
        arguments=_delete,
        run="unbounded.cli.deploy.revoke:delete_site",
    ),
    CliCommand(
        path=("site", "deploy-pxe"),
        help="run metalman on a node of a site, which its machines boot from",
        examples=(("site deploy-pxe --site rack1 --dry-run server -o yaml", "what would be deployed"),),
        arguments=_deploy_pxe,
        run="unbounded.cli.deploy.sites:deploy_pxe",
    ),
    CliCommand(
        path=("site", "serve-pxe"),
        help="be the metalman of a site on this machine; its flags are those of `metalman serve-pxe`",
        examples=(("site serve-pxe --site rack1 --dhcp-interface eth1", "until it is stopped with Ctrl-C"),),
        arguments=_serve_pxe,
        run="unbounded.cli.deploy.serve_pxe:serve_pxe",
        needs_api=False,
    ),
)
