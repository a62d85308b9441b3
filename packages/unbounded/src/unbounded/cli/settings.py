"""Settings of `unbounded up` and `unbounded migrate`: flags and environment, read once."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from unbounded.cli.pxe import add_pxe_arguments, netboot_of
from unbounded.containercloud.settings import ContainerCloudSettings
from unbounded.containercloud.settings import add_up_arguments as add_container_cloud_arguments
from unbounded.containercloud.settings import up_settings_of as container_cloud_settings_of
from unbounded.kube.settings import Address, add_log_arguments, endpoint_url, flag_parser, parse_bool, parse_port
from unbounded.machina.settings import ProvisioningSettings as MachineSettings
from unbounded.machina.settings import add_host_arguments, host_settings_of
from unbounded.metalman.flag_values import serial_address
from unbounded.metalman.settings import SERIAL_ADDRESS, MetalmanSettings, NetbootSettings

LAB_LIMIT: Final = 1000
LAB_IDENTITY_FILE: Final = "lab.json"  # in the data directory
LAB_CLOUDS: Final = ("azure", "oci")  # the simulator's clouds; importing them for a help text would be slow
USUAL_CONNECTIONS: Final = 4000  # the server's default; importing it for a help text would be slow
USUAL_NODE_GRACE_S: Final = 50  # the server's default, too
LEAST_NODE_GRACE_S: Final = 20  # kubelet renews its Lease every 10 s, and one failure must be tolerated
MOST_NODE_GRACE_S: Final = 3600
FEWEST_CONNECTIONS: Final = 50  # the controllers of `up` are clients too
FEWEST_OF_ADDRESS: Final = 30  # they all come from loopback
MOST_CONNECTIONS: Final = 100_000
USUAL_BACKUP_MINUTES: Final = 60
MOST_BACKUP_MINUTES: Final = 7 * 24 * 60
USUAL_BACKUPS: Final = 72
MOST_BACKUPS: Final = 10_000
HOST_NAME: Final = re.compile(r"[A-Za-z0-9]([-.A-Za-z0-9]{0,251}[A-Za-z0-9])?")


@dataclass(frozen=True)
class BackupSettings:
    """Back-ups of `unbounded up`.

    Args:
        folder: an absolute path.
        keep: back-ups of this control plane in the folder; older ones are removed.
        again_s: seconds until a failed back-up is retried, unless the next one is due earlier.
        limit_s: time limit of one back-up.
    """

    folder: Path
    every_s: float = 60.0 * USUAL_BACKUP_MINUTES
    keep: int = USUAL_BACKUPS
    again_s: float = 300.0
    limit_s: float = 1800.0


@dataclass(frozen=True, kw_only=True)
class UpSettings:
    """Settings of one run of `unbounded migrate`.

    Args:
        backups: None for none.
        port: of the API server; None for the last one, or 6443, or a free one.
        max_connections_per_address: 0 for three quarters of `max_connections`.
        node_grace_s: silence after which a Node turns Unknown.
        verify_kubelets: whether logs and exec need a kubelet whose certificate the server has signed.
        lab: number of simulated machines.
        lab_cloud: the simulated cloud of these machines; empty for machines with BMCs.
        once: end after the first operation.
        netboot: network boot; None for none.
        serial_consoles, keeps_console_output: see MetalmanSettings.
        machines: settings for hosts that are set up over SSH.
        container_cloud: None to run no controllers of Container Cloud.
        console: port of the console on loopback, 0 for a free one; None for no console.
        allow_operations: the console offers actions.
    """

    data: Path
    bind: str = "127.0.0.1"
    port: int | None = None
    advertise_address: str = ""
    max_connections: int = USUAL_CONNECTIONS
    max_connections_per_address: int = 0
    verify_kubelets: bool = False
    node_grace_s: int = USUAL_NODE_GRACE_S
    health_port: int = 0
    backups: BackupSettings | None = None
    lab: int = 0
    lab_cloud: str = ""
    lab_profile: str = "ideal"
    once: bool = False
    log_format: str = "text"
    log_level: str = "warning"
    netboot: NetbootSettings | None = None
    serial_consoles: Address | None = SERIAL_ADDRESS
    keeps_console_output: bool = True
    machines: MachineSettings = MachineSettings()  # noqa: RUF009 - frozen
    container_cloud: ContainerCloudSettings | None = None
    console: int | None = None
    allow_operations: bool = False

    @property
    def metalman(self) -> MetalmanSettings:
        return MetalmanSettings(
            site=None,
            serial_consoles=self.serial_consoles,
            keeps_console_output=self.keeps_console_output,
            netboot=self.netboot,
            netboots=self.netboot is not None,
        )


def add_backup_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="Write the backup to this file")
    _add_data(parser)
    parser.add_argument("--force", action="store_true", help="Replace FILE if it exists")


def add_restore_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="a backup")
    _add_data(parser)


def add_migrate_arguments(parser: argparse.ArgumentParser) -> None:
    _add_data(parser)
    parser.add_argument(
        "--to", type=Path, metavar="KUBECONFIG", help="Move the control plane to the cluster of this kubeconfig"
    )
    parser.add_argument(
        "--context", default="", metavar="NAME", help="Use this context of --to (default: its current context)"
    )
    parser.add_argument(
        "--api-server-endpoint",
        type=flag_parser(endpoint_url),
        metavar="URL",
        help="Set the address at which hosts reach the cluster's API server (default: the one that it "
        "publishes, else the server of --to)",
    )
    parser.add_argument("--plan", action="store_true", help="Print the plan, also while `unbounded up` runs, and exit")
    parser.add_argument("--yes", action="store_true", help="Start without a question")
    parser.add_argument(
        "--take-back", action="store_true", help="Delete the copies, and leave the control plane where it was"
    )
    parser.add_argument(
        "--finish",
        action="store_true",
        help="Let the cluster act on a complete copy, when the source data is not available",
    )
    parser.add_argument(
        "--without-target", action="store_true", help="With --take-back: the target cluster does not exist any more"
    )
    _add_address(parser)


def _add_address(parser: argparse.ArgumentParser) -> None:
    """Add the flags for the addresses of the embedded API server: listening and advertised."""
    parser.add_argument(
        "--bind", default="127.0.0.1", metavar="ADDRESS", help="Listen on this address (default: %(default)s)"
    )
    parser.add_argument(
        "--port",
        type=flag_parser(parse_port),
        help="Serve the API on this port (default: the former port; at first 6443, or a free one)",
    )
    parser.add_argument(
        "--advertise-address",
        type=flag_parser(_host),
        default="",
        metavar="ADDRESS",
        help="Write this address into the kubeconfig, for access from other machines",
    )


def _add_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data",
        type=Path,
        default=Path("data"),
        metavar="DIR",
        help="Store all data in this directory (default: %(default)s)",
    )


def add_up_arguments(parser: argparse.ArgumentParser, environ: Mapping[str, str]) -> None:
    _add_data(parser)
    _add_address(parser)
    _add_connections(parser)
    _add_nodes(parser)
    parser.add_argument(
        "--health-port",
        type=flag_parser(parse_port),
        default=0,
        metavar="PORT",
        help="Serve /metrics, /healthz and /readyz on this port of loopback (default: a free one, which is printed)",
    )
    _add_scheduled_backups(parser)
    _add_lab(parser)
    _add_consoles(parser)
    _add_console(parser)
    add_log_arguments(parser, environ, level="warning", log_format="text")
    add_host_arguments(parser)
    add_pxe_arguments(parser)
    add_container_cloud_arguments(parser)


def _add_connections(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-connections",
        type=flag_parser(_connections),
        default=USUAL_CONNECTIONS,
        metavar="N",
        help="Limit the connections of clients to the API server (default: %(default)s)",
    )
    parser.add_argument(
        "--max-connections-per-address",
        type=flag_parser(_connections_of_address),
        default=0,
        metavar="N",
        help="Limit the connections of one client address, or IPv6 /64 network (default: three quarters of "
        "--max-connections)",
    )


def _add_nodes(parser: argparse.ArgumentParser) -> None:
    """Add the flags about kubelets and their Nodes."""
    parser.add_argument(
        "--verify-kubelets",
        action="store_true",
        help="Accept only kubelets whose serving certificate this server has signed, for logs and exec",
    )
    parser.add_argument(
        "--node-monitor-grace-period",
        type=flag_parser(_node_grace),
        default=USUAL_NODE_GRACE_S,
        metavar="SECONDS",
        help="Mark a Node as Unknown when its kubelet has been silent for this long (default: %(default)s)",
    )


def _add_scheduled_backups(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--backup-to",
        type=Path,
        metavar="FOLDER",
        help="Write backups to this directory, such as a share of another machine",
    )
    parser.add_argument(
        "--backup-every",
        type=flag_parser(_minutes),
        metavar="MINUTES",
        help=f"Set the time between backups (default: {USUAL_BACKUP_MINUTES})",
    )
    parser.add_argument(
        "--backup-keep",
        type=flag_parser(_backup_count),
        metavar="N",
        help=f"Retain this number of backups of the control plane (default: {USUAL_BACKUPS})",
    )


def _add_lab(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lab", type=flag_parser(_count), default=0, metavar="N", help="Simulate N machines with BMCs")
    parser.add_argument(
        "--lab-cloud",
        choices=LAB_CLOUDS,
        default="",
        help="With --lab: simulate the machines in this cloud. All Machines of its provider then belong to it",
    )
    parser.add_argument(
        "--lab-profile",
        default="ideal",
        metavar="P",
        help="Set the faults of the simulation: see unbounded lab bmc --list-profiles, and unbounded lab cloud",
    )
    parser.add_argument("--once", action="store_true", help="With --lab: exit when the first operation has ended")


def _add_consoles(parser: argparse.ArgumentParser) -> None:
    """Add the flags about the serial consoles of BMCs."""
    parser.add_argument(
        "--serial-console-address",
        type=flag_parser(serial_address),
        default=SERIAL_ADDRESS,
        metavar="ADDRESS:PORT",
        help="Serve the serial consoles of BMCs to `kubectl unbounded machine serial` on this address; port 0 takes a "
        f"free one, and an empty value serves none (default: {SERIAL_ADDRESS.host}:{SERIAL_ADDRESS.port})",
    )
    parser.add_argument(
        "--keep-console-output",
        type=flag_parser(parse_bool),
        default=True,
        metavar="BOOL",
        help="Keep the last 64 KiB of the serial console of a boot that failed in a Secret, without the secrets that "
        "metalman recognizes (default: true)",
    )


def _add_console(parser: argparse.ArgumentParser) -> None:
    """Add the flag of the console in the browser."""
    parser.add_argument(
        "--console",
        type=flag_parser(parse_port),
        nargs="?",
        const=0,
        default=None,
        metavar="PORT",
        help="Serve the console for browsers on this port of loopback (without PORT: a free one), and print its "
        "address",
    )
    parser.add_argument(
        "--allow-operations",
        action="store_true",
        help="Let the console request operations, maintenance and pauses; without it, the console only reads",
    )


def up_settings_of(args: argparse.Namespace) -> UpSettings:
    """Return the settings that the flags give.

    Raises:
        ValueError: flags contradict each other.
    """
    if args.once and not args.lab:
        raise ValueError("--once exits after the first operation, and needs --lab N to start one")
    if args.lab_cloud and not args.lab:
        raise ValueError(f"--lab-cloud {args.lab_cloud} needs --lab N, the number of its machines")
    if args.allow_operations and args.console is None:
        raise ValueError("--allow-operations is for the console, and needs --console")
    return UpSettings(
        data=args.data,
        bind=args.bind,
        port=args.port,
        advertise_address=args.advertise_address,
        max_connections=args.max_connections,
        max_connections_per_address=args.max_connections_per_address,
        verify_kubelets=args.verify_kubelets,
        node_grace_s=args.node_monitor_grace_period,
        health_port=args.health_port,
        backups=_backups(args),
        lab=args.lab,
        lab_cloud=args.lab_cloud,
        lab_profile=args.lab_profile,
        once=args.once,
        log_format=args.log_format,
        log_level=args.log_level,
        netboot=netboot_of(args),
        serial_consoles=args.serial_console_address,
        keeps_console_output=args.keep_console_output,
        machines=host_settings_of(args),
        container_cloud=container_cloud_settings_of(args),
        console=args.console,
        allow_operations=args.allow_operations,
    )


def _backups(args: argparse.Namespace) -> BackupSettings | None:
    """Return the settings of back-ups; None without --backup-to.

    Raises:
        ValueError: a flag of back-ups without the folder.
    """
    folder: Path | None = args.backup_to
    if folder is None:
        for name in ("backup_every", "backup_keep"):
            if getattr(args, name) is not None:
                raise ValueError(f"--{name.replace('_', '-')} needs --backup-to FOLDER")
        return None
    minutes = args.backup_every or USUAL_BACKUP_MINUTES
    return BackupSettings(folder.absolute(), 60.0 * minutes, args.backup_keep or USUAL_BACKUPS)


def _minutes(text: str) -> int:
    return _number(text, 1, MOST_BACKUP_MINUTES)


def _backup_count(text: str) -> int:
    return _number(text, 1, MOST_BACKUPS)


def _host(text: str) -> str:
    """Check a host name or an IP address, without brackets and without a port."""
    try:
        return str(ip_address(text))
    except ValueError:
        if text and not HOST_NAME.fullmatch(text):
            raise ValueError(f"{text!r} is neither a host name nor an IP address") from None
        return text


def _connections(text: str) -> int:
    return _number(text, FEWEST_CONNECTIONS, MOST_CONNECTIONS)


def _connections_of_address(text: str) -> int:
    return _number(text, FEWEST_OF_ADDRESS, MOST_CONNECTIONS)


def _count(text: str) -> int:
    return _number(text, 0, LAB_LIMIT)


def _node_grace(text: str) -> int:
    return _number(text, LEAST_NODE_GRACE_S, MOST_NODE_GRACE_S)


def _number(text: str, least: int, most: int) -> int:
    if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
        raise ValueError(f"{text!r} is not a number from {least} to {most}")
    return int(text)


@dataclass(frozen=True, kw_only=True)
class MigrateSettings:
    """Settings of one run of `unbounded migrate`.

    Args:
        up: the data, and the addresses of its API server.
        to: kubeconfig of the target; None where the target is gone.
        endpoint: of the target's API server, for hosts; empty for what the target publishes.
        plan: show the plan, and end.
        yes: begin without a confirmation.
        finish, take_back: the decision about an interrupted migration.
        without_target: take back on the source alone.
    """

    up: UpSettings
    to: Path | None
    context: str = ""
    endpoint: str = ""
    plan: bool = False
    yes: bool = False
    finish: bool = False
    take_back: bool = False
    without_target: bool = False


def migrate_settings_of(args: argparse.Namespace) -> MigrateSettings:
    """Return the settings that the flags give.

    Raises:
        ValueError: flags contradict each other.
    """
    if args.without_target and not args.take_back:
        raise ValueError("--without-target requires --take-back")
    if args.without_target is (args.to is not None):
        raise ValueError(
            "use either --to KUBECONFIG for the cluster, or --without-target if it does not exist any more"
        )
    if sum((args.plan, args.take_back, args.finish)) > 1:
        raise ValueError("--plan, --take-back and --finish exclude each other")
    return MigrateSettings(
        up=UpSettings(data=args.data, bind=args.bind, port=args.port, advertise_address=args.advertise_address),
        to=args.to,
        context=args.context,
        endpoint=args.api_server_endpoint or "",
        plan=args.plan,
        yes=args.yes,
        finish=args.finish,
        take_back=args.take_back,
        without_target=args.without_target,
    )
