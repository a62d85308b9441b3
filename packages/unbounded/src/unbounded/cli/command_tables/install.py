"""`kubectl unbounded install`, `uninstall` and `token revoke`."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Final

from unbounded.cli.plugin.command import CliCommand
from unbounded.cli.plugin.flags import BooleanFlag, add_boolean, add_force, checked, limit

MINUTES_5: Final = 300.0


def add_dry_run(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--dry-run",
        choices=("none", "client", "server"),
        default="none",
        help="client: print the objects; server: let the server validate them; neither writes anything (default none)",
    )


def add_image_registry(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--image-registry",
        default="",
        metavar="REGISTRY",
        help="Pull images from this registry; required for the first installation (default: that of the "
        "running machina)",
    )


def add_cluster_arguments(parser: ArgumentParser) -> None:
    """Add the flags for machina's settings of the cluster."""
    parser.add_argument(
        "--api-server-endpoint",
        default="",
        metavar="HOST:PORT",
        help="Set the address at which hosts reach the API server (default: the one in ConfigMap "
        "kube-public/cluster-info)",
    )
    parser.add_argument(
        "--cluster-dns",
        default="",
        metavar="ADDRESS",
        help="Set the DNS server of nodes, for clusters without Service kube-system/kube-dns",
    )
    for flag, metavar, help_ in (
        ("--artifact-mirror", "URL", "Set the download mirror of hosts whose Machine names none"),
        ("--agent-version", "VERSION", "Install this version of the agent for Machines that name none"),
        ("--agent-base-url", "URL", "Install the agent from this release directory for Machines that name none"),
        ("--agent-url", "URL", "Install this tarball of the agent for Machines that name none"),
        ("--agent-sha256", "DIGEST", "Verify the agent's tarball with this SHA-256 digest; required for plain http"),
        (
            "--agent-public-key",
            "KEY",
            "Publish this public key of releases (PEM): hosts run only agents that it signed",
        ),
        (
            "--agent-image",
            "IMAGE",
            "Use this image as the root file system of nodes for Machines that name none and do not boot from the "
            "network",
        ),
    ):
        parser.add_argument(flag, default="", metavar=metavar, help=help_)


def _install_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--namespace",
        default="unbounded-kube",
        metavar="NAME",
        help="Set the namespace; no other is supported (default %(default)s)",
    )
    add_boolean(parser, "--wait", default=True, help="Wait until the controllers are running")
    parser.add_argument(
        "--timeout",
        type=checked(limit),
        default=MINUTES_5,
        metavar="DURATION",
        help="Stop waiting after this time (default 5m)",
    )
    add_cluster_arguments(parser)
    add_image_registry(parser)
    _add_image(parser, "--image", "machina")
    _add_machine_ops_arguments(parser)
    _add_container_cloud_arguments(parser)
    _add_console_arguments(parser)
    _add_console_oidc_arguments(parser)
    add_dry_run(parser)
    parser.add_argument("-v", "--verbose", action="store_true", help="Print each object; -o name prints only its name")
    parser.add_argument("--diff", action="store_true", help="Print the differences, and write nothing")


def _add_image(parser: ArgumentParser, flag: str, program: str) -> None:
    text = f"Use this image of {program} (default: this version, from --image-registry)"
    parser.add_argument(flag, default="", metavar="IMAGE", help=text)


def _add_machine_ops_arguments(parser: ArgumentParser) -> None:
    add_boolean(
        parser,
        "--enable-machine-ops-controller",
        default=False,
        help="Run machine-ops-controller, for machines in clouds; a running one is updated without this flag",
    )
    parser.add_argument(
        "--site",
        default="",
        metavar="SITE",
        help="Deploy machine-ops-controller for Machines of this site only (default: all)",
    )
    parser.add_argument(
        "--provider",
        default="",
        metavar="NAME",
        help="Deploy machine-ops-controller for this provider only, such as AzureVM (default: all in its image)",
    )
    _add_image(parser, "--machine-ops-image", "machine-ops-controller")


def _add_container_cloud_arguments(parser: ArgumentParser) -> None:
    add_boolean(
        parser,
        "--container-cloud",
        default=False,
        help="Serve the kinds of Container Cloud and run container-cloud; a running one is updated without this flag",
    )
    _add_image(parser, "--container-cloud-image", "container-cloud")


def _add_console_arguments(parser: ArgumentParser) -> None:
    add_boolean(
        parser,
        "--console",
        default=False,
        help="Run the console for browsers; a running one is updated without this flag",
    )
    _add_image(parser, "--console-image", "the console")
    parser.add_argument(
        "--console-allow-operations",
        action=BooleanFlag,
        default=None,
        help="Let the console offer actions, which users do with their own rights (default: as it runs, else false)",
    )


def _add_console_oidc_arguments(parser: ArgumentParser) -> None:
    for flag, metavar, help_ in (
        (
            "--console-oidc-issuer-url",
            "URL",
            "Let the console offer the log-in with this OpenID Connect provider, whose ID tokens the API server "
            "accepts; '' offers none (default: as it runs)",
        ),
        ("--console-oidc-client-id", "ID", "Let the console be this client of the provider (default: as it runs)"),
        (
            "--console-oidc-client-secret",
            "SECRET/KEY",
            "Let the console read the client's secret from this key of a Secret in unbounded-kube; '' is for a public "
            "client (default: as it runs)",
        ),
        (
            "--console-oidc-ca-file",
            "FILE",
            "Let the console trust the certificate authorities in this PEM file for the provider; '' trusts those of "
            "its image (default: as it runs)",
        ),
        (
            "--console-oidc-scopes",
            "SCOPES",
            "Let the console ask for these scopes beside openid, with commas; '' is for offline_access, where the "
            "provider lists it (default: as it runs)",
        ),
    ):
        parser.add_argument(flag, default=None, metavar=metavar, help=help_)


def _uninstall(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--delete-data",
        action="store_true",
        help="Delete definitions with all their objects, Secrets and the namespace, too; this cannot be undone",
    )
    add_force(parser, "the name of the namespace")


def _revoke(parser: ArgumentParser) -> None:
    parser.add_argument(
        "tokens", nargs="*", default=[], metavar="TOKEN", help="Delete the token with this ID, such as abcdef"
    )
    parser.add_argument("--site", default="", metavar="SITE", help="Revoke all tokens of this site")
    add_force(parser, "the names of the tokens")


COMMANDS: Final = (
    CliCommand(
        path=("install",),
        help="Install or update definitions, RBAC, policies and controllers in a cluster",
        examples=(
            (
                "install --image-registry registry.example.com/unbounded",
                "install everything, and wait until it runs; deploy/images explains how to build the images",
            ),
            ("install --diff", "print what an update from the same registry would change; write nothing"),
            (
                "install --image-registry registry.example.com/unbounded --dry-run client -o yaml",
                "print the manifests, for a tool that applies them",
            ),
            ("install --enable-machine-ops-controller", "run machine-ops-controller, too, for all sites and clouds"),
            (
                "install --enable-machine-ops-controller --site west --provider AzureVM",
                "run one machine-ops-controller for a site and a cloud instead",
            ),
            ("install --console", "run the console for browsers, too, with a log-in for each user"),
            (
                "install --console --console-oidc-issuer-url https://idp.example.com "
                "--console-oidc-client-id kubernetes",
                "let the console offer the log-in with an OpenID Connect provider",
            ),
            ("install --container-cloud", "serve the kinds of Container Cloud, too, on a cluster without Metal3"),
            ("install --artifact-mirror https://mirror.example.com", "let hosts download from a mirror"),
        ),
        arguments=_install_arguments,
        run="unbounded.cli.deploy.install:run",
    ),
    CliCommand(
        path=("uninstall",),
        help="Remove what `install` and `site` created from a cluster without Machines",
        text=(
            "Delete the controllers, policies and RBAC that `install`, `site init` and `site deploy-pxe` "
            "created. Definitions and Secrets stay without --delete-data; the command lists them. It fails "
            "while Machines exist. A second run deletes nothing."
        ),
        examples=(
            ("uninstall", "delete the controllers, policies and RBAC, once you have typed the namespace"),
            ("uninstall --delete-data --force", "delete definitions, Secrets and the namespace, too; do not ask"),
        ),
        arguments=_uninstall,
        run="unbounded.cli.deploy.uninstall:run",
    ),
    CliCommand(
        path=("token", "revoke"),
        help="Delete bootstrap tokens, so that no further host joins with them",
        text=(
            "Delete bootstrap tokens, by ID or all of a site. Hosts that have joined keep their "
            "certificates. The command does not delete tokens of other tools."
        ),
        examples=(
            ("token revoke abcdef --force", "delete one token; do not ask"),
            ("token revoke --site rack1", "delete all tokens of a site"),
        ),
        arguments=_revoke,
        run="unbounded.cli.deploy.uninstall:revoke",
    ),
)
