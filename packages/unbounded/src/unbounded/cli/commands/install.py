"""`kubectl unbounded install`."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Final

from unbounded.cli.plugin.command import CliCommand
from unbounded.cli.plugin.flags import add_boolean, checked, limit

MINUTES_5: Final = 300.0


def add_dry_run(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--dry-run",
        choices=("none", "client", "server"),
        default="none",
        help="client: print what would be sent; server: have the server check it; nothing is written (none)",
    )


def add_image_registry(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--image-registry",
        default="",
        metavar="REGISTRY",
        help="of images; needed where none runs yet (that of the machina that runs)",
    )


def add_cluster_arguments(parser: ArgumentParser) -> None:
    """Add the flags for machina's settings of the cluster."""
    parser.add_argument(
        "--api-server-endpoint",
        default="",
        metavar="HOST:PORT",
        help="where hosts find the API server (what ConfigMap kube-public/cluster-info says)",
    )
    parser.add_argument(
        "--cluster-dns",
        default="",
        metavar="ADDRESS",
        help="what nodes ask for names, where there is no Service kube-system/kube-dns",
    )
    for flag, metavar, help_ in (
        ("--artifact-mirror", "URL", "where hosts download what their Machine gives no place for"),
        ("--agent-version", "VERSION", "of agents, for Machines that do not say"),
        ("--agent-base-url", "URL", "where releases of the agent are, for the same"),
        ("--agent-url", "URL", "the agent's tarball itself, for the same"),
        ("--agent-sha256", "DIGEST", "SHA-256 digest of the agent's tarball; needed where it comes over plain http"),
        ("--agent-public-key", "KEY", "public key of releases (PEM): hosts run agents that it signed alone"),
        ("--agent-image", "IMAGE", "root file system of nodes, for the same"),
    ):
        parser.add_argument(flag, default="", metavar=metavar, help=help_)


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--namespace", default="unbounded-kube", metavar="NAME", help="no other can be had (%(default)s)"
    )
    add_boolean(parser, "--wait", default=True, help="wait until the controllers run")
    parser.add_argument(
        "--timeout", type=checked(limit), default=MINUTES_5, metavar="DURATION", help="leave off waiting after (5m)"
    )
    add_cluster_arguments(parser)
    add_image_registry(parser)
    parser.add_argument("--image", default="", metavar="IMAGE", help="of machina (this version, from --image-registry)")
    add_boolean(
        parser,
        "--enable-machine-ops-controller",
        default=False,
        help="run machine-ops-controller, for machines of clouds; one that runs is kept up to date without it",
    )
    for flag, metavar, help_ in (
        ("--site", "SITE", "of machine-ops-controller: a Deployment for machines of this site alone (of all)"),
        (
            "--provider",
            "NAME",
            "of machine-ops-controller: for this provider alone, such as AzureVM (all in its image)",
        ),
        ("--machine-ops-image", "IMAGE", "of machine-ops-controller (this version, from --image-registry)"),
    ):
        parser.add_argument(flag, default="", metavar=metavar, help=help_)
    add_dry_run(parser)
    parser.add_argument("-v", "--verbose", action="store_true", help="print each object; -o name prints its name alone")
    parser.add_argument("--diff", action="store_true", help="show what would change, and write nothing")


COMMANDS: Final = (
    CliCommand(
        path=("install",),
        help="bring definitions, rights, policies and controllers to a cluster, or up to this version",
        examples=(
            (
                "install --image-registry registry.example.com/unbounded",
                "bring all of it, and wait until it runs; deploy/images has how images are built",
            ),
            ("install --diff", "later, with images from the same place: what would change; nothing is written"),
            (
                "install --image-registry registry.example.com/unbounded --dry-run client -o yaml",
                "the manifests, for tools that apply them",
            ),
            ("install --enable-machine-ops-controller", "and machine-ops-controller, for all sites and clouds"),
            (
                "install --enable-machine-ops-controller --site west --provider AzureVM",
                "in place of that, one for each site and cloud that is to have its own",
            ),
            ("install --artifact-mirror https://mirror.example.com", "hosts download from there from now on"),
        ),
        arguments=_arguments,
        run="unbounded.cli.deploy.install:run",
    ),
)
