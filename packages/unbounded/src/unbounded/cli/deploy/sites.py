"""`kubectl unbounded site …`: controllers and tokens that hosts of a site need to join, and the metalman of a site."""

from __future__ import annotations

import os
import re
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Final

from unbounded.api.failures import Rejected
from unbounded.api.fields import DNS_SUBDOMAIN
from unbounded.api.names import NAMESPACE
from unbounded.cli.deploy import apply, bundle, machine_ops, validation, workloads
from unbounded.cli.deploy.live_machina import (
    LiveMachina,
    chosen_image,
    live_image,
    live_machina,
    pod_security,
    require_usable,
)
from unbounded.cli.deploy.machina_settings import settings_from_flags
from unbounded.cli.deploy.pods import PRIVILEGED
from unbounded.cli.deploy.site_tokens import tokens_for
from unbounded.cli.deploy.workloads import stages
from unbounded.cli.plugin.command import DONE, USAGE, CliError, CommandSession, refuse_output
from unbounded.kube.clock import rfc3339
from unbounded.kube.options import add_options
from unbounded.kube.settings import add_log_arguments
from unbounded.metalman.attest.trust import TrustedRoots
from unbounded.metalman.flag_values import interface, ipv4_networks
from unbounded.metalman.flags import DEPLOYED_OPTIONS, MEDIA_OPTIONS, OPTIONS, PREFIX

WAIT_S: Final = 300.0
NETWORKS: Final = ("cluster_node_cidr", "cluster_pod_cidr", "node_cidr", "pod_cidr")
LEAST_TTL: Final = timedelta(minutes=10)
LONGEST_TTL: Final = timedelta(days=365)


async def init(session: CommandSession) -> int:
    """Install the controllers that hosts of a site need to join, and make a token for them."""
    args = session.invocation.args
    refuse_output(
        session.invocation, "json", "yaml", what="the command applies several objects; `install` prints manifests"
    )
    site = _site("--name", args.name)
    good_for = _good_for(args.token_ttl)
    _note_networks(session)
    require_usable(args)
    given = settings_from_flags(args)
    manifests = await _manifests(args.machina_manifests)
    where = await apply.embedded_controllers(session.api)
    machina = args.enable_machina and "machina" not in where
    live = LiveMachina() if where else await live_machina(session.api)
    metalman = await _metalman(session, live, site) if args.enable_metalman and "metalman" not in where else ()
    if manifests and not machina:
        session.printer.warn("--machina-manifests: no effect, as no Deployment runs machina")
    level = PRIVILEGED if metalman else await pod_security(session.api)
    desired = stages(None, _objects(metalman), level=level)
    if machina:
        controllers, others = await _controllers(session, live, given, manifests)
        desired = stages(controllers, (*others, *_objects(metalman)), level=level)
    await apply.apply_stages(session, desired, terse=True)
    apply.report_embedded(session, where, given)
    await _token(session, site, good_for)
    deployed = [*([workloads.MACHINA] if machina and not manifests else []), *(one.name for one in metalman)]
    status = await apply.wait_available(session, deployed, WAIT_S)
    if status == DONE:
        session.printer.info(
            f"Next: add a host: `{session.invocation.program} machine register --site {site} --host HOST "
            "--ssh-username USER --ssh-private-key FILE`"
        )
    return status


async def _manifests(source: str) -> tuple[dict[str, Any], ...]:
    """Load third-party manifests; nothing where no source is named."""
    if not source:
        return ()
    try:
        return await bundle.load(source)
    except bundle.UnusableBundle as error:
        raise CliError(f"--machina-manifests {error}", status=USAGE) from error


async def _controllers(
    session: CommandSession, live: LiveMachina, given: Mapping[str, str], manifests: Sequence[dict[str, Any]]
) -> tuple[workloads.MachinaWorkload | None, tuple[dict[str, Any], ...]]:
    """Return machina of this version, or None; and other objects: those for clouds, or third-party manifests.

    A running machina is not changed unless a flag is given for it. Its administrator may apply files of his own, which
    would undo the changes.
    """
    args = session.invocation.args
    if live.image and not (given or args.image_registry or manifests):
        await apply.warn_unknown_endpoint(session, live)
        return None, ()
    config = await apply.config_for(session, live, given)
    if not manifests:
        kept = "" if args.image_registry else live.image
        machina = workloads.MachinaWorkload(chosen_image("machina", image=kept, registry=args.image_registry), config)
        _, clouds = await machine_ops.desired_deployments(session, None, machina, as_it_is=bool(kept))
        return machina, clouds
    return None, (workloads.machina_config_map(config), *manifests)


async def _metalman(session: CommandSession, live: LiveMachina, site: str) -> tuple[workloads.MetalmanWorkload, ...]:
    """Return the metalman of a site, unless one runs: `site deploy-pxe` may have set flags that are unknown here."""
    metalman = workloads.MetalmanWorkload("", site)
    if await live_image(session.api, metalman.name, "metalman"):
        return ()
    image = chosen_image("metalman", registry=session.invocation.args.image_registry, beside=live.image)
    return (replace(metalman, image=image),)


def _objects(metalman: Sequence[workloads.MetalmanWorkload]) -> list[dict[str, Any]]:
    return [body for one in metalman for body in workloads.metalman_objects(one)]


async def _token(session: CommandSession, site: str, good_for: timedelta) -> None:
    for written in await tokens_for(session.api, site, good_for):
        until = "without a limit" if written.until is None else f"until {rfc3339(written.until)}"
        session.printer.info(f"secret/{written.name} {written.verb}: hosts of site {site} can join with it {until}")


def _note_networks(session: CommandSession) -> None:
    """Check the reference's flags for networks, and warn that they have no effect: other tools make the network."""
    args, given = session.invocation.args, []
    for name in NETWORKS:
        text = getattr(args, name)
        if text:
            flag = f"--{name.replace('_', '-')}"
            given.append(flag)
            try:
                ip_network(text)
            except ValueError as error:
                raise CliError(f"{flag}: {error}", status=USAGE) from None
    given += ["--cni-manifests"] if args.cni_manifests else []
    given += ["--enable-storage"] if args.enable_storage else []
    if given:
        session.printer.warn(f"{', '.join(given)}: no effect: install the cluster's network and storage yourself")


async def deploy_pxe(session: CommandSession) -> int:
    """Deploy metalman in a site."""
    args = session.invocation.args
    metalman = workloads.MetalmanWorkload(
        "",
        _site("--site", args.site),
        _interface(args.interface),
        _relays(args.dhcp_relay),
        _options(args),
        _ek_ca(args.ek_ca),
        _media_secret(args),
    )
    require_usable(args)
    if args.dry_run == apply.CLIENT:
        image = chosen_image("metalman", image=args.image, registry=args.image_registry)
        return apply.show(session, workloads.metalman_objects(replace(metalman, image=image)))
    where = await apply.embedded_controllers(session.api)
    if "metalman" in where:
        session.printer.info(f"metalman runs for all sites: {where['metalman']}")
        session.printer.info(
            f"To boot hosts of {session.invocation.args.site} from it, give `unbounded up` --pxe-interface NAME"
        )
        return DONE
    metalman = replace(metalman, image=await _image(session, metalman.name))
    desired = stages(None, workloads.metalman_objects(metalman), level=PRIVILEGED)
    await apply.apply_stages(session, desired, dry_run=args.dry_run == apply.SERVER, terse=True)
    if session.printer.whole:
        apply.show(session, workloads.metalman_objects(metalman))
    if args.dry_run == apply.SERVER:
        return DONE
    session.printer.info(
        f"metalman runs on nodes with the label unbounded-cloud.io/site={metalman.site}, on their network."
    )
    return DONE


async def _image(session: CommandSession, name: str) -> str:
    """Return the image of this version of metalman: from the flags, else from the repository of metalman or machina."""
    args = session.invocation.args
    existing = await live_image(session.api, name, "metalman")
    machina_image = await live_image(session.api, workloads.MACHINA, "machina")
    return chosen_image(
        "metalman", image=args.image, registry=args.image_registry, there=existing, beside=machina_image
    )


def _site(flag: str, text: str) -> str:
    try:
        return validation.flagged(flag, validation.site, text)
    except validation.BadFlag as error:
        raise CliError(str(error), status=USAGE) from None


def _good_for(seconds: float | None) -> timedelta:
    """Check --token-ttl. A token must expire, while 0 means no limit elsewhere."""
    if seconds is None or not LEAST_TTL.total_seconds() <= seconds <= LONGEST_TTL.total_seconds():
        raise CliError("--token-ttl: a token is valid for 10m to 8760h", status=USAGE)
    return timedelta(seconds=seconds)


def _relays(texts: Sequence[str]) -> tuple[str, ...]:
    try:
        return tuple(str(network) for network in ipv4_networks(",".join(texts)))
    except ValueError as error:
        raise CliError(f"--dhcp-relay: {error}", status=USAGE) from None


def _options(args: Namespace) -> tuple[str, ...]:
    """Return the flags that are passed to metalman unchanged."""
    found = []
    for option in DEPLOYED_OPTIONS:
        if text := getattr(args, option.name.replace("-", "_")):
            try:
                option.parse(text)
            except ValueError as error:
                raise CliError(f"{option.flag}: {error}", status=USAGE) from None
            found.append(f"{option.flag}={text}")
    return tuple(found)


def _media_secret(args: Namespace) -> str:
    """Return the Secret with the certificate of boot images; empty to serve none."""
    name: str = args.media_secret
    if name and not re.fullmatch(DNS_SUBDOMAIN, name):
        raise CliError(f"--media-secret: {name!r} is not the name of a Secret of {NAMESPACE}", status=USAGE)
    given = next((one.flag for one in MEDIA_OPTIONS if getattr(args, one.name.replace("-", "_"))), "")
    if given and not name:
        raise CliError(f"{given} needs --media-secret NAME", status=USAGE)
    return name


def _ek_ca(path: str) -> str:
    if not path:
        return ""
    try:
        file = Path(path).expanduser()
        TrustedRoots.load(file)
        return validation.without_private_key(file.read_text())
    except Rejected as error:
        raise CliError(f"--ek-ca: {error}", status=USAGE) from None
    except ValueError as error:
        raise CliError(f"--ek-ca: {path}: {error}", status=USAGE) from None


def _interface(text: str) -> str:
    try:
        return interface(text) or ""
    except ValueError as error:
        raise CliError(f"--interface: {error}", status=USAGE) from None


async def serve_pxe(session: CommandSession) -> int:
    """Replace this process by metalman."""
    args = session.invocation.args
    if args.as_user or args.as_groups or args.as_uid:
        text = "--as: metalman does not impersonate a user"
        raise CliError(text, next_step="use a kubeconfig whose user has `as`", status=USAGE)
    given = pxe_arguments(args)
    sys.stdout.flush()
    os.execve(  # noqa: S606 - this process has nothing left to do, and signals are for the other one
        sys.executable,
        [sys.executable, "-m", "unbounded.metalman.main", "serve-pxe", *given],
        dict(session.invocation.environ),
    )


def pxe_arguments(args: Namespace) -> list[str]:
    """Return the given flags in the form of metalman."""
    found: list[str] = []
    for option in OPTIONS:
        value = getattr(args, option.dest)
        values = value if isinstance(value, list) else [] if value is None else [value]
        found += [f"{option.flag}={one}" for one in values]
    named = {"--kubeconfig": args.kubeconfig, "--context": args.context}
    found += [f"{flag}={value}" for flag, value in named.items() if value]
    return [*found, f"--log-format={args.log_format}", f"--log-level={args.log_level}"]


def add_pxe_arguments(parser: ArgumentParser) -> None:
    """Add metalman's own flags, without those that all commands have."""
    add_options(parser, PREFIX, OPTIONS)
    add_log_arguments(parser, os.environ, level="info", log_format="text")
