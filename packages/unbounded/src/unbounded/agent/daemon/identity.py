"""The agent's identity at the API server: a bootstrap token for its first request, its own certificate from then on.

The first request also creates the Machine of this host where there is none.
"""

from __future__ import annotations

import asyncio
import base64
import os.path
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec

from unbounded.agent.interfaces import OnProgress
from unbounded.agent.model import CertificateAccess, ExecAccess, KubeletAccess
from unbounded.agent.paths import HostPaths
from unbounded.api.failures import Failure, Rejected
from unbounded.api.machine import MACHINES
from unbounded.api.names import LABEL_MACHINE, LABEL_SITE
from unbounded.join import csr
from unbounded.join.agent_config import AgentConfig, ExecCredential
from unbounded.join.bootstrap_tokens import secret_name
from unbounded.join.cluster_verification import certificates, signed_place
from unbounded.kube.api import AlreadyExists, Api, Forbidden, InvalidObject, NotFound
from unbounded.kube.client import HttpApi
from unbounded.kube.clock import Backoff, WallClock, utc_now
from unbounded.kube.config import ClientConfig
from unbounded.kube.credentials import AuthInfo, ClientCredentials, ExecPlugin, StaticCredentials
from unbounded.kube.logs import Log, SecretStr

USER_AGENT: Final = "unbounded-agent"
RENEWAL_POLL_S: Final = 3600.0  # the wall clock may be set during a sleep, and hosts are suspended
WAITS_S: Final = 15.0
A_PERSON: Final = "an administrator, as machina approves only requests of bootstrap tokens"
RENEWAL: Final = Backoff(base_s=60.0, max_s=3600.0)

log = Log("agent")


class AgentIdentity:
    """The agent's own certificate for the API client; renewed ahead of its expiry.

    Args:
        files: where it is stored.
        held: the present certificate.
    """

    def __init__(
        self, files: csr.IdentityFiles, stored: csr.StoredCertificate, machine: str, *, now: WallClock = utc_now
    ) -> None:
        self._files = files
        self._held = stored
        self._desired = csr.agent_identity(machine)
        self._now = now

    async def login(self) -> AuthInfo:
        return AuthInfo(certificate=self._held.certificate)

    def refused(self, login: AuthInfo) -> bool:
        """Return whether another process of this host has replaced the certificate, and use the new one."""
        there = self._files.stored()
        if there is None or there.certificate == login.certificate:
            return False
        self._held = there
        return True

    async def keep_renewed(self, api: Api) -> None:
        """Renew the certificate when due, until cancelled."""
        failures = 0
        while True:
            left_s = (self._held.renewal() - self._now()).total_seconds()
            if left_s > 0:
                await asyncio.sleep(min(left_s, RENEWAL_POLL_S))
                continue
            try:
                self._held = await csr.certificate(api, self._files, self._desired)
                failures = 0
            except Failure as error:
                failures += 1
                self._complain(error)
                await asyncio.sleep(RENEWAL.after(failures))

    def _complain(self, error: Failure) -> None:
        if self._held.is_good(self._now()):
            log.warning("cannot renew the agent's certificate yet", error=error, until=self._held.ends.isoformat())
        else:
            log.error(rejoin_message(self._desired.machine), until=self._held.ends.isoformat(), error=str(error))


def rejoin_message(machine: str) -> str:
    """Return the remedy for an agent whose certificate has expired."""
    return (
        f"the agent's certificate has expired: increase spec.joinCounter of Machine {machine}, and run "
        "`unbounded-agent start` with a new bootstrap token"
    )


async def identity_when_joined(
    paths: HostPaths, machine: str, *, now: WallClock = utc_now, poll_s: float = WAITS_S
) -> AgentIdentity:
    """Wait until the agent has a valid certificate and return its identity. The log names the reason of the wait."""
    message = ""
    while True:
        try:
            return identity_of(paths, machine, now=now)
        except Failure as error:
            if str(error) != message:
                message = str(error)
                log.warning("cannot reach the API server", error=error)
        await asyncio.sleep(poll_s)


def has_joined(paths: HostPaths) -> bool:
    """Return whether this host has an agent's certificate that the caller's user can see: of any Machine, also an
    expired one.
    """
    # Path.exists raises for a user without permission
    return os.path.exists(csr.certificate_file(paths.identity, csr.AGENT))


def identity_of(paths: HostPaths, machine: str, *, now: WallClock = utc_now) -> AgentIdentity:
    """Return the identity of an agent that has joined.

    Raises:
        Rejected: the agent has not joined, or its certificate has expired.
        Transient: the disk cannot be read.
    """
    files = csr.IdentityFiles(paths.identity, csr.agent_identity(machine))
    stored = files.stored()
    if stored is None:
        raise Rejected(f"no certificate of Machine {machine}'s agent in {paths.identity}: run `unbounded-agent start`")
    if not stored.is_good(now()):
        raise Rejected(rejoin_message(machine))
    return AgentIdentity(files, stored, machine, now=now)


def client_config(config: AgentConfig, credentials: ClientCredentials) -> ClientConfig:
    """Return the client settings of the configured API server, with these credentials."""
    ca = base64.b64decode(config.cluster.ca_cert_base64)
    return ClientConfig(server=config.kubelet.api_server.rstrip("/"), credentials=credentials, ca=ca)


def join_credentials(config: AgentConfig, token: SecretStr | None) -> ClientCredentials:
    """Return the credentials of a host that has no certificate yet.

    Args:
        token: a bootstrap token from attestation; None for the configuration's credential.
    Raises:
        Rejected: there is no credential.
    """
    auth = config.kubelet.auth
    text = token.reveal() if token is not None else auth.bootstrap_token
    if text:
        return StaticCredentials(AuthInfo(token=text))
    if auth.exec_credential is not None:
        return _plugin(auth.exec_credential, config.kubelet.api_server)
    raise Rejected("Kubelet.Auth: joining needs a BootstrapToken, an ExecCredential or Attest.URL")


def _plugin(credential: ExecCredential, server: str) -> ExecPlugin:
    env = [{"name": one.name, "value": one.value} for one in credential.env]
    body = {
        "command": credential.command,
        "args": list(credential.args),
        "env": env,
        "apiVersion": credential.api_version,
    }
    return ExecPlugin.from_config(body, folder=HostPaths().root, server=server)


async def verified(config: AgentConfig, token: SecretStr) -> AgentConfig:
    """Return the configuration with the CA that the cluster has signed with the token, where it signs. The token is not
    sent for this.

    Raises:
        Rejected: the server does not know the token, or has another CA.
        Transient: no answer.
    """
    given = base64.b64decode(config.cluster.ca_cert_base64).decode()
    place = await signed_place(config.kubelet.api_server, given, token)
    if place is None:
        log.info("the cluster does not sign cluster-info with this token; trusting the CA in the configuration")
        return config
    if certificates(place.ca_pem).isdisjoint(certificates(given)):
        text = "Cluster.CaCertBase64: the cluster with this bootstrap token has another CA"
        raise Rejected(
            f"{text}. The configuration was modified in transit, or is for another cluster; no token was sent"
        )
    signed = base64.b64encode(place.ca_pem.encode()).decode()
    return msgspec.structs.replace(config, cluster=msgspec.structs.replace(config.cluster, ca_cert_base64=signed))


async def join(
    paths: HostPaths,
    config: AgentConfig,
    *,
    token: SecretStr | None = None,
    report: OnProgress = csr.ignore_progress,
    now: WallClock = utc_now,
    within_s: float = csr.WITHIN_S,
) -> None:
    """Ensure that the Machine exists and that the agent has a valid certificate. An interrupted call resumes with the
    same request.

    Args:
        token: from attestation; None for the credential of the configuration.
    Raises:
        Rejected: the certificate was denied, or the host may not request one: the message has the remedy.
        Transient, Uncertain: no answer, or no decision yet.
    """
    desired = csr.agent_identity(config.machine_name)
    files = csr.IdentityFiles(paths.identity, desired)
    stored = files.stored()
    joined = stored is not None and stored.is_good(now())
    if joined and await is_registered(paths, config, now=now):
        return
    credentials = join_credentials(config, token)
    text = token.reveal() if token is not None else config.kubelet.auth.bootstrap_token
    trusted = await verified(config, SecretStr(text)) if text else config
    async with HttpApi(client_config(trusted, credentials), user_agent=USER_AGENT) as api:
        report(f"Machine {config.machine_name}")
        refused = await register(api, config, token_id=text.partition(".")[0])
        if joined and refused is not None:
            raise Rejected(
                f"Machine {config.machine_name} does not exist any more; {_creation_remedy(refused)}"
            ) from refused
        if not joined:
            approver = csr.MACHINA if text else A_PERSON
            try:
                await csr.certificate(api, files, desired, report=report, within_s=within_s, approver=approver)
            except Rejected as error:
                if refused is None or isinstance(error, Forbidden):
                    raise
                raise Rejected(f"{error}; if the Machine does not exist, {_creation_remedy(refused)}") from error


def _creation_remedy(refused: Rejected) -> str:
    return f"create it, or use a bootstrap token of the site: this host may not create it ({refused})"


async def is_set_up(paths: HostPaths, config: AgentConfig, *, now: WallClock = utc_now) -> bool:
    """Return whether `join` has nothing to do. An API server that does not answer counts as yes, so that a start
    continues.
    """
    stored = csr.IdentityFiles(paths.identity, csr.agent_identity(config.machine_name)).stored()
    if stored is None or not stored.is_good(now()):
        return False
    try:
        return await is_registered(paths, config, now=now)
    except Failure as error:
        log.warning("cannot determine whether the Machine exists", machine=config.machine_name, error=error)
        return True


async def is_registered(paths: HostPaths, config: AgentConfig, *, now: WallClock = utc_now) -> bool:
    """Return whether the Machine still exists, as an agent that has joined reads it."""
    async with connected(paths, config, now=now) as api:
        try:
            await api.get(MACHINES, config.machine_name)
        except NotFound:
            return False
    return True


@asynccontextmanager
async def connected(paths: HostPaths, config: AgentConfig, *, now: WallClock = utc_now) -> AsyncIterator[HttpApi]:
    """Open the API with the identity of the agent that has joined; without renewal, for short work.

    Raises:
        Rejected: the agent has no valid certificate.
    """
    identity = identity_of(paths, config.machine_name, now=now)
    async with HttpApi(client_config(config, identity), user_agent=USER_AGENT) as api:
        yield api


async def kubelet_access(
    api: Api,
    paths: HostPaths,
    config: AgentConfig,
    *,
    report: OnProgress = csr.ignore_progress,
    now: WallClock = utc_now,
) -> KubeletAccess:
    """Return the credential of kubelet in a slot that is about to be built.

    It is the program of the configuration where there is one, else a certificate that the agent requests. Raises as
    `join`.
    """
    if (program := exec_access(config)) is not None:
        return program
    desired = csr.kubelet_identity(config.machine_name)
    files = csr.IdentityFiles(paths.identity, desired)
    certificate = await csr.good_certificate(api, files, desired, report=report, now=now)
    return CertificateAccess(certificate.pem())


def exec_access(config: AgentConfig) -> ExecAccess | None:
    """Return the program that the configuration names for kubelet."""
    exec_credential = config.kubelet.auth.exec_credential
    if exec_credential is None:
        return None
    return ExecAccess(
        exec_credential.command,
        exec_credential.args,
        tuple((one.name, one.value) for one in exec_credential.env),
        exec_credential.api_version,
    )


_OURS: Final = frozenset({LABEL_SITE, LABEL_MACHINE})  # fields of the Machine have these already


async def register(api: Api, config: AgentConfig, *, token_id: str = "") -> Rejected | None:
    """Create the Machine of this host unless it exists.

    There is no read before: a bootstrap token may not read Machines.

    Args:
        api: with the bootstrap token's identity, or another one that may create Machines.
        token_id: bootstrap token that the new Machine names; empty for none.
    Returns:
        None where the Machine exists now, else why this host may not create it; it may exist all the same.
    Raises:
        Rejected: the API server has no Machine resource.
        Transient, Uncertain: no answer.
    """
    name = config.machine_name
    try:
        await api.create(MACHINES, manifest(config, token_id=token_id))
    except AlreadyExists:
        return None
    except NotFound as error:
        raise Rejected(
            "the API server has no resource Machine: install the CustomResourceDefinitions of deploy/crd/ first"
        ) from error
    except (Forbidden, InvalidObject) as error:
        return error
    log.info("machine registered", machine=name)
    return None


def manifest(config: AgentConfig, *, token_id: str = "") -> dict[str, Any]:
    """Return the Machine as its agent knows it: its name, its site, and the settings of its node."""
    kubelet, version = config.kubelet, config.cluster.version
    labels = {key: value for key, value in kubelet.labels.items() if key not in _OURS}
    site = kubelet.labels.get(LABEL_SITE)
    kubernetes: dict[str, Any] = {"version": f"v{version}"} if version else {}
    if labels:
        kubernetes["nodeLabels"] = dict(sorted(labels.items()))
    if kubelet.register_with_taints:
        kubernetes["registerWithTaints"] = list(kubelet.register_with_taints)
    if token_id:
        kubernetes["bootstrapTokenRef"] = {"name": secret_name(token_id)}
    metadata: dict[str, Any] = {"name": config.machine_name} | ({"labels": {LABEL_SITE: site}} if site else {})
    spec: dict[str, Any] = {"kubernetes": kubernetes}
    if config.oci_image:
        spec["agent"] = {"image": config.oci_image}
    return {"metadata": metadata, "spec": spec}
