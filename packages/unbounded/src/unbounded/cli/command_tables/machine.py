"""`kubectl unbounded machine …`: commands that add machines. Commands on existing ones are in `operation`."""

from __future__ import annotations

import re
from argparse import ArgumentParser
from typing import Final

from unbounded.cli.command_tables.install import add_dry_run
from unbounded.cli.plugin.command import CliCommand
from unbounded.cli.plugin.flags import add_boolean, add_force, add_wait, checked

# Each artifact of a node, and the flag for its version.
ARTIFACTS: Final = (
    ("kubernetes", "kubernetes-binary-version", "kubelet and kubectl"),
    ("containerd", "containerd-version", "containerd"),
    ("runc", "runc-version", "runc"),
    ("cni", "cni-version", "the CNI plugins"),
    ("crictl", "crictl-version", "crictl"),
    ("sandbox", "sandbox-version", "the archive of the sandbox image"),
)


def _text(parser: ArgumentParser, flag: str, metavar: str, help: str) -> None:  # the parameter names of argparse
    parser.add_argument(flag, default="", metavar=metavar, help=help)


def _many(parser: ArgumentParser, flag: str, metavar: str, help: str) -> None:
    parser.add_argument(flag, action="append", default=[], metavar=metavar, help=f"{help}. Repeatable")


def _node(parser: ArgumentParser) -> None:
    """Add the flags for properties of the Node."""
    _many(parser, "--node-label", "KEY=VALUE", "Set a label of the Node")
    _many(parser, "--register-with-taint", "KEY=VALUE:EFFECT", "Set a taint of the Node")
    _text(parser, "--kubernetes-version", "VERSION", "Set the Kubernetes version of the node (default: the cluster's)")


def _downloads(parser: ArgumentParser) -> None:
    """Add the flags for download sources."""
    group = parser.add_argument_group("where the agent and the parts of a node come from")
    for flag, metavar, text in (
        ("--agent-version", "VERSION", "Install this release of the agent (default: the latest)"),
        ("--agent-base-url", "URL", "Install the agent from this release directory"),
        ("--agent-url", "URL", "Install this tarball of the agent; overrides the two flags above"),
        ("--agent-sha256", "DIGEST", "Verify the agent's tarball with this SHA-256 digest; required for plain http"),
    ):
        group.add_argument(flag, default="", metavar=metavar, help=text)
    for name, version, text in ARTIFACTS:
        group.add_argument(f"--{name}-base-url", default="", metavar="URL", help=f"Download {text} from this base URL")
        group.add_argument(f"--{name}-url", default="", metavar="URL", help=f"Download {text} from this complete URL")
        group.add_argument(f"--{version}", default="", metavar="VERSION", help=f"Use this version of {text}")


def _register(parser: ArgumentParser) -> None:
    parser.add_argument("--site", required=True, help="Name the site of the host")
    parser.add_argument("--host", required=True, metavar="HOST[:PORT]", help="Set the name or address of the host")
    parser.add_argument("--ssh-username", required=True, metavar="USER", help="Log in as this user, who may use sudo")
    _text(
        parser,
        "--name",
        "NAME",
        "Set the name of the Machine after SITE- (default: the host, with - for invalid characters)",
    )
    _text(parser, "--ssh-private-key", "FILE", "Read the private key from this file; without it, the Secret must exist")
    _text(parser, "--ssh-secret-name", "NAME", "Name the Secret of unbounded-kube with the key (default ssh-SITE)")
    _many(
        parser, "--host-key", "KEY", "Trust this host key, as ssh-keyscan prints it (default: the first one presented)"
    )
    bastion = parser.add_argument_group("a host behind a bastion")
    for flag, metavar, text in (
        ("--bastion-host", "HOST[:PORT]", "Set the name or address of the bastion"),
        ("--bastion-ssh-username", "USER", "Log in to the bastion as this user (default: the user of the host)"),
        (
            "--bastion-ssh-private-key",
            "FILE",
            "Read the bastion's private key from this file (default: that of the host)",
        ),
        (
            "--bastion-ssh-secret-name",
            "NAME",
            "Name the Secret with the bastion's key (default: that of the host, or ssh-SITE-bastion)",
        ),
    ):
        bastion.add_argument(flag, default="", metavar=metavar, help=text)
    bastion.add_argument(
        "--bastion-host-key", action="append", default=[], metavar="KEY", help="Trust this host key of the bastion"
    )
    _node(parser)
    _text(parser, "--oci-image", "IMAGE", "Use this image as the root file system of the node")
    add_boolean(parser, "--reset-on-delete", default=False, help="Reset the host before the Machine is deleted")
    add_wait(parser, default=False, help="Wait until the Machine is Ready, or an attempt to set up its host has failed")
    add_dry_run(parser)
    parser.add_argument("--force", action="store_true", help="Replace a Secret that contains another key")
    _downloads(parser)


def _register_file(parser: ArgumentParser) -> None:
    parser.add_argument(
        "-f",
        "--filename",
        required=True,
        metavar="FILE",
        help="Read the hosts from this file: CSV with a line of names, or YAML or JSON with a list of mappings",
    )
    add_dry_run(parser)
    parser.add_argument("--force", action="store_true", help="Replace a Secret that contains another key")


def _by_hand(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="Name the Machine and its Node")
    parser.add_argument("--site", required=True, help="Name the site of the host")
    parser.add_argument(
        "--variant", choices=("script", "cloud-init"), default="script", help="Select the output (default %(default)s)"
    )
    _node(parser)
    _text(parser, "--oci-image", "IMAGE", "Use this image as the root file system of the node")
    _downloads(parser)


def _allow_join(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="Name the Machine")
    add_force(parser, "the name of a Machine that is Ready")


def _trust_host_key(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="Name the Machine")
    fingerprint = "Set the fingerprint of the key, as ssh-keygen -lf prints it (default: that of the presented key)"
    parser.add_argument("--fingerprint", type=checked(_fingerprint), metavar="SHA256:…", help=fingerprint)
    _text(
        parser,
        "--host-key",
        "KEY",
        "Set the complete key, as ssh-keyscan prints it; required where spec.ssh.hostKeys is set",
    )
    parser.add_argument(
        "--bastion",
        action="store_true",
        help="Trust the key of the bastion (default: the server whose key has changed)",
    )
    add_force(parser, "the name of the Machine")


def _serial(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="Name the Machine")
    parser.add_argument("--read-only", action="store_true", help="Show the output, and send nothing")
    parser.add_argument(
        "--last-failed",
        action="store_true",
        help="Print the last output of the last boot that failed, and exit; it needs the right to get its Secret",
    )


def _fingerprint(text: str) -> str:
    if re.fullmatch("SHA256:[A-Za-z0-9+/]{43}=?", text) is None:
        raise ValueError(f"{text!r} is not a fingerprint as ssh-keygen -lf prints it: SHA256: and 43 characters")
    return text.rstrip("=")


COMMANDS: Final = (
    CliCommand(
        path=("machine", "register"),
        help="Add a host that machina reaches over SSH and makes a node",
        examples=(
            (
                "machine register --site rack1 --host 192.0.2.10 --ssh-username admin"
                " --ssh-private-key ~/.ssh/id_ed25519",
                "register a host as Machine rack1-192.0.2.10",
            ),
            (
                "machine register --site rack1 --host 10.0.0.7 --name web7 --ssh-username admin"
                " --bastion-host bastion.example.com --ssh-private-key ~/.ssh/id_ed25519 --wait",
                "register a host behind a bastion, and wait until it is a node",
            ),
        ),
        arguments=_register,
        run="unbounded.cli.deploy.register:run",
        intend="unbounded.cli.deploy.register:intend",
    ),
    CliCommand(
        path=("register",),
        help="Add the hosts of a CSV or YAML file, as `machine register` adds one",
        examples=(
            ("register -f hosts.csv --dry-run server", "print all faults of a file, or what would be created"),
            ("register -f hosts.yaml", "create the Machines, and the Secrets with their keys"),
        ),
        arguments=_register_file,
        run="unbounded.cli.deploy.register_file:run",
        text=(
            "Add the hosts of a file, as `machine register` adds one. The fields of a host are the flags of that "
            "command, without dashes: site, host and ssh-username are required. Several values of a field are "
            "separated by semicolons in CSV, and are a list in YAML. All faults are reported at once, with line and "
            "field, and nothing is written where there is one. Machines that exist as described stay as they are."
        ),
    ),
    CliCommand(
        path=("machine", "manual-bootstrap"),
        help="Print a script or user data that makes a host a node without SSH; it contains a token",
        examples=(
            ("machine manual-bootstrap web8 --site rack1", "print a script to run as root on the host"),
            ("machine manual-bootstrap web8 --site rack1 --variant cloud-init", "print the user data of a new VM"),
        ),
        arguments=_by_hand,
        run="unbounded.cli.deploy.manual_bootstrap:run",
    ),
    CliCommand(
        path=("machine", "allow-join"),
        help="Let a machine get certificates once more, such as after the loss of its disk",
        examples=(("machine allow-join rack1-01", "allow its agent and its kubelet one certificate each"),),
        arguments=_allow_join,
        run="unbounded.cli.operation_commands.machine_counters:allow_join",
        intend="unbounded.cli.operation_commands.machine_counters:intend_join",
        text=(
            "Let a machine get certificates once more, such as after the loss of its disk. If machina set up "
            "its host over SSH, it runs the install again. For a Machine that is Ready, confirm by typing "
            "its name."
        ),
    ),
    CliCommand(
        path=("machine", "trust-host-key"),
        help="Trust another SSH host key of a Machine, such as after a reinstallation of its host",
        examples=(
            ("machine trust-host-key rack1-01", "print the key that its host presents, ask, and trust it"),
            (
                "machine trust-host-key rack1-01 --fingerprint SHA256:ItCdK+Uxsb2Xu4/hwPoLtpVR6Lz1eK9qVXg5ALdZSMo",
                "trust a key whose fingerprint you read on the host's console",
            ),
        ),
        arguments=_trust_host_key,
        run="unbounded.cli.deploy.trust_host_key:run",
        intend="unbounded.cli.deploy.trust_host_key:intend",
    ),
    CliCommand(
        path=("machine", "serial"),
        help="Connect the terminal to the serial console of a Machine, which its BMC offers",
        examples=(
            ("machine serial rack1-01", "open the console; ~. at the start of a line closes it"),
            ("machine serial rack1-01 --read-only", "watch a boot; send nothing"),
            ("machine serial rack1-01 --last-failed", "print the last output of the boot that failed last"),
        ),
        arguments=_serial,
        run="unbounded.cli.serial_console:run",
        text=(
            "Connect the terminal to the serial console of a Machine. metalman opens it at the BMC, over a web socket "
            "or SSH, once it has checked that the user has the RBAC verb serial on the Machine. A console has one user "
            "at a time. It ends after 30 minutes without a byte, and after 8 hours."
        ),
    ),
)
