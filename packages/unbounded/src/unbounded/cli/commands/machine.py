"""`kubectl unbounded machine …`: commands that add machines. Commands on existing ones are in `operation`."""

from __future__ import annotations

import re
from argparse import ArgumentParser
from typing import Final

from unbounded.cli.commands.install import add_dry_run
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
    parser.add_argument(flag, action="append", default=[], metavar=metavar, help=f"{help}; may be given several times")


def _node(parser: ArgumentParser) -> None:
    """Add the flags for properties of the Node."""
    _many(parser, "--node-label", "KEY=VALUE", "label of the Node")
    _many(parser, "--register-with-taint", "KEY=VALUE:EFFECT", "taint of the Node")
    _text(parser, "--kubernetes-version", "VERSION", "of the node (the cluster's)")


def _downloads(parser: ArgumentParser) -> None:
    """Add the flags for download sources."""
    group = parser.add_argument_group("where the agent and the parts of a node come from")
    for flag, metavar, text in (
        ("--agent-version", "VERSION", "release of the agent (the latest)"),
        ("--agent-base-url", "URL", "where releases of the agent are"),
        ("--agent-url", "URL", "of the agent's tarball; counts before the two above"),
        ("--agent-sha256", "DIGEST", "SHA-256 digest of the agent's tarball; needed where it comes over plain http"),
    ):
        group.add_argument(flag, default="", metavar=metavar, help=text)
    for name, version, text in ARTIFACTS:
        group.add_argument(f"--{name}-base-url", default="", metavar="URL", help=f"where {text} can be found")
        group.add_argument(f"--{name}-url", default="", metavar="URL", help=f"whole URL of {text}")
        group.add_argument(f"--{version}", default="", metavar="VERSION", help=f"of {text}")


def _register(parser: ArgumentParser) -> None:
    parser.add_argument("--site", required=True, help="that the host stands in")
    parser.add_argument("--host", required=True, metavar="HOST[:PORT]", help="name or address")
    parser.add_argument("--ssh-username", required=True, metavar="USER", help="who logs in there, and may use sudo")
    _text(parser, "--name", "NAME", "of the Machine, after SITE- (the host, with what a name cannot have as -)")
    _text(parser, "--ssh-private-key", "FILE", "its private key; without it the Secret has to be there already")
    _text(parser, "--ssh-secret-name", "NAME", "Secret of unbounded-kube that holds it (ssh-SITE)")
    _many(parser, "--host-key", "KEY", "host key as ssh-keyscan prints it (the first one seen is trusted)")
    bastion = parser.add_argument_group("a host behind another one")
    for flag, metavar, text in (
        ("--bastion-host", "HOST[:PORT]", "name or address of the jump host"),
        ("--bastion-ssh-username", "USER", "who logs in there (the user of the host)"),
        ("--bastion-ssh-private-key", "FILE", "its private key (that of the host)"),
        ("--bastion-ssh-secret-name", "NAME", "Secret that holds it (that of the host, or ssh-SITE-bastion)"),
    ):
        bastion.add_argument(flag, default="", metavar=metavar, help=text)
    bastion.add_argument("--bastion-host-key", action="append", default=[], metavar="KEY", help="host key of it")
    _node(parser)
    _text(parser, "--oci-image", "IMAGE", "root file system of the node")
    add_boolean(parser, "--reset-on-delete", default=False, help="deleting the Machine resets the host first")
    add_wait(parser, default=False, help="wait until it is Ready, or an attempt to set its host up has failed")
    add_dry_run(parser)
    parser.add_argument("--force", action="store_true", help="replace a Secret that holds another key")
    _downloads(parser)


def _by_hand(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="of the Machine, and of its Node")
    parser.add_argument("--site", required=True, help="that the host stands in")
    parser.add_argument(
        "--variant", choices=("script", "cloud-init"), default="script", help="what is printed (%(default)s)"
    )
    _node(parser)
    _text(parser, "--oci-image", "IMAGE", "root file system of the node")
    _downloads(parser)


def _allow_join(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="of the Machine")
    add_force(parser, "the name of a Machine that is Ready")


def _trust_host_key(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="of the Machine")
    fingerprint = "of the key, as ssh-keygen -lf prints it (the one that the server shows)"
    parser.add_argument("--fingerprint", type=checked(_fingerprint), metavar="SHA256:…", help=fingerprint)
    _text(parser, "--host-key", "KEY", "the whole key, as ssh-keyscan prints it; needed where spec.ssh.hostKeys counts")
    parser.add_argument("--bastion", action="store_true", help="of the bastion (of the server whose key has changed)")
    add_force(parser, "the name of the Machine")


def _fingerprint(text: str) -> str:
    if re.fullmatch("SHA256:[A-Za-z0-9+/]{43}=?", text) is None:
        raise ValueError(f"{text!r} is no fingerprint, such as ssh-keygen -lf prints it: SHA256: and 43 characters")
    return text.rstrip("=")


COMMANDS: Final = (
    CliCommand(
        path=("machine", "register"),
        help="add a host that is reached over SSH; machina makes it a node",
        examples=(
            (
                "machine register --site rack1 --host 192.0.2.10 --ssh-username admin"
                " --ssh-private-key ~/.ssh/id_ed25519",
                "the Machine is called rack1-192.0.2.10",
            ),
            (
                "machine register --site rack1 --host 10.0.0.7 --name web7 --ssh-username admin"
                " --bastion-host bastion.example.com --ssh-private-key ~/.ssh/id_ed25519 --wait",
                "through a bastion, and wait until it is a node",
            ),
        ),
        arguments=_register,
        run="unbounded.cli.deploy.register:run",
        intend="unbounded.cli.deploy.register:intend",
    ),
    CliCommand(
        path=("machine", "manual-bootstrap"),
        help="print what makes a host a node that nobody logs in to; it holds a token",
        examples=(
            ("machine manual-bootstrap web8 --site rack1", "a script for root on the host"),
            ("machine manual-bootstrap web8 --site rack1 --variant cloud-init", "user data of a new VM"),
        ),
        arguments=_by_hand,
        run="unbounded.cli.deploy.manual_bootstrap:run",
    ),
    CliCommand(
        path=("machine", "allow-join"),
        help="let a machine get certificates once more, such as after its disk was lost",
        examples=(("machine allow-join rack1-01", "its agent and its kubelet each get one"),),
        arguments=_allow_join,
        run="unbounded.cli.deploy.allow_join:run",
        intend="unbounded.cli.deploy.allow_join:intend",
        text=(
            "Let a machine get certificates once more, such as after its disk was lost. Where machina has set its host"
            " up over SSH, it runs the install there again; of a Machine that is Ready the name has to be typed first."
        ),
    ),
    CliCommand(
        path=("machine", "trust-host-key"),
        help="have another SSH host key count for a Machine, such as after its host was installed anew",
        examples=(
            ("machine trust-host-key rack1-01", "the key that its host shows now, after it was shown and agreed to"),
            (
                "machine trust-host-key rack1-01 --fingerprint SHA256:ItCdK+Uxsb2Xu4/hwPoLtpVR6Lz1eK9qVXg5ALdZSMo",
                "one that was read at the host's own console",
            ),
        ),
        arguments=_trust_host_key,
        run="unbounded.cli.deploy.trust_host_key:run",
        intend="unbounded.cli.deploy.trust_host_key:intend",
    ),
)
