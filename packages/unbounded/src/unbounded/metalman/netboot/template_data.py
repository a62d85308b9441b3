"""Data for a machine's boot files from the cluster: the context of templates, and the Machine's own user-data.

The context holds facts of the cluster besides the Machine. The user-data is in the ConfigMap that its spec refers to.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final

from unbounded.api.configuration import MachineConfigurationTemplate
from unbounded.api.core import CONFIG_MAPS, SECRETS, ConfigMap
from unbounded.api.failures import Rejected
from unbounded.api.machine import Machine
from unbounded.api.machine_spec import ConfigMapKeySelector
from unbounded.api.names import NAMESPACE, PCRPolicy
from unbounded.join import bootstrap_tokens
from unbounded.join.agent_config import agent_config_json
from unbounded.join.bootstrap_tokens import token_in
from unbounded.join.cluster_facts import FactsFollower
from unbounded.join.labels_and_taints import NoVersion, read_bound_version
from unbounded.kube.api import READ_FORBIDDEN, Api, ApiError, Forbidden, NotFound
from unbounded.kube.clock import utc_now
from unbounded.metalman.attest.quote import pcr_policy
from unbounded.metalman.netboot.model import FactUnknown
from unbounded.metalman.netboot.template_context import TemplateContext

_FIELD: Final = "spec.kubernetes.bootstrapTokenRef"


class ClusterTemplateContext:
    """Context of a template, computed for each file, as facts change while hosts boot.

    A host gets its token by attestation. If the Machine's spec refers to a token, the host's configuration contains it,
    unless the PCR policy requires attestation.

    Args:
        policy: PCR policy of Machines that name none.
        mirror: source of artifacts whose source the Machine does not name; empty for the projects' own sources.
    """

    def __init__(
        self, api: Api, follower: FactsFollower, policy: PCRPolicy = PCRPolicy.RECORDED, *, mirror: str = ""
    ) -> None:
        self._api = api
        self._follower = follower
        self._policy = policy
        self._mirror = mirror

    async def template_context(self, machine: Machine, serve_url: str, *, private: bool) -> TemplateContext:
        """Return the context.

        Args:
            serve_url: the URL of this boot, with its prefix; the agent attests under it.
            private: the client knows the prefix; only then may the file contain a token.
        Raises:
            FactUnknown: the cluster is not known yet, or the Machine's configuration or token cannot be read.
            Rejected: the token in the Machine's spec lets no host join, or is excluded by the PCR policy.
        """
        facts = self._follower.facts
        if facts is None:
            raise FactUnknown("address and certificates of the cluster are not known yet")
        template = await self._template(machine)
        return TemplateContext(
            apiserver_url=facts.apiserver_url,
            serve_url=serve_url,
            kubernetes_version=facts.kubernetes_version,
            cluster_dns=facts.cluster_dns,
            agent_config_json=agent_config_json(
                machine,
                facts,
                attest_url=None if _token_named(machine) else serve_url,
                token=await self._token(machine) if private else None,
                settings=template,
                mirror=self._mirror,
            ),
        )

    async def _token(self, machine: Machine) -> str | None:
        """Return the token that the Machine's spec refers to; None if there is none."""
        name = _token_named(machine)
        if not name:
            return None
        if pcr_policy(machine, self._policy) is PCRPolicy.REQUIRED:
            raise Rejected(
                f"{_FIELD} gives a token without attestation, which the PCR policy {PCRPolicy.REQUIRED} excludes: "
                f"remove it, or set spec.pxe.attestation.pcrPolicy to {PCRPolicy.RECORDED}"
            )
        where = f"{_FIELD}: Secret {bootstrap_tokens.NAMESPACE}/{name}"
        try:
            secret = await self._api.get(SECRETS, name, namespace=bootstrap_tokens.NAMESPACE)
        except NotFound as error:
            raise Rejected(f"{where} does not exist") from error
        except Forbidden as error:
            raise Rejected(f"{where} {READ_FORBIDDEN} by metalman; {_grant(name)}") from error
        except ApiError as error:
            raise FactUnknown(f"cannot read the Machine's bootstrap token: {error}") from error
        try:
            return token_in(secret, now=utc_now(), machine_uid=machine.metadata.uid).text.reveal()
        except Rejected as error:
            raise Rejected(f"{_FIELD}: {error}") from error

    async def _template(self, machine: Machine) -> MachineConfigurationTemplate | None:
        """Return the template of the Machine's configuration; None if it does not exist, and the agent waits for it."""
        ref = machine.spec.configuration_ref
        try:
            return None if ref is None else (await read_bound_version(self._api, ref)).spec.template
        except NoVersion:
            return None
        except ApiError as error:
            raise FactUnknown(f"cannot read the Machine's configuration: {error}") from error


def _token_named(machine: Machine) -> str:
    """Return the name of the Secret with a Machine's bootstrap token; empty if its spec refers to none."""
    kubernetes = machine.spec.kubernetes
    ref = kubernetes.bootstrap_token_ref if kubernetes is not None else None
    return "" if ref is None else ref.name


def _grant(name: str) -> str:
    """Return the commands with which an administrator lets metalman read one Secret of kube-system."""
    role = f"kubectl --namespace {bootstrap_tokens.NAMESPACE} create role metalman-{name} --verb get --resource secrets"
    binding = (
        f"kubectl --namespace {bootstrap_tokens.NAMESPACE} create rolebinding metalman-{name} --role metalman-{name}"
    )
    return f"`{role} --resource-name {name}` and `{binding} --serviceaccount unbounded-kube:metalman` grant it"


EMPTY_USER_DATA: Final = b"#cloud-config\n"  # cloud-init requires the file; this one configures nothing


class UserDataMissing(Exception):
    """The key of the Machine's user-data does not exist; the message names ConfigMap and key, and the existing keys."""


class UserDataForbidden(Exception):
    """The ConfigMap may not be read, so that its existence is unknown. The host waits until the user corrects the
    access.
    """


def reference_of(machine: Machine) -> ConfigMapKeySelector | None:
    """Return the ConfigMap key that the Machine's spec refers to."""
    pxe = machine.spec.pxe
    return None if pxe is None or pxe.cloud_init is None else pxe.cloud_init.user_data_config_map_ref


def value_of(config_map: ConfigMap, key: str, where: str) -> bytes:
    """Return the value of a key, in data or binaryData.

    Raises:
        UserDataMissing: there is no such key.
    """
    if key in config_map.data:
        return config_map.data[key].encode()
    if key in config_map.binary_data:
        try:
            return base64.b64decode(config_map.binary_data[key], validate=True)
        except (binascii.Error, ValueError):
            raise UserDataMissing(f"{where}: binaryData.{key} is not base64") from None
    there = ", ".join(sorted({*config_map.data, *config_map.binary_data})) or "none"
    raise UserDataMissing(f"{where} has no key {key!r}; its keys are: {there}")


async def user_data(api: Api, machine: Machine) -> tuple[bytes | None, str]:
    """Return the Machine's user-data and a warning, which is empty if there is none.

    The data is None if the Machine's spec refers to none. A ConfigMap that does not exist counts as empty user-data,
    with a warning, so that the install can continue.

    Raises:
        UserDataMissing: the ConfigMap exists without the key.
        UserDataForbidden: metalman may not read the ConfigMap.
        ApiError: the read failed.
    """
    named = reference_of(machine)
    if named is None:
        return None, ""
    where = f"spec.pxe.cloudInit.userDataConfigMapRef: ConfigMap {named.namespace}/{named.name}"
    try:
        found = await api.get(CONFIG_MAPS, named.name, namespace=named.namespace)
    except NotFound:
        return EMPTY_USER_DATA, f"{where} does not exist; the host receives empty user-data"
    except Forbidden as error:
        text = (
            f"metalman has no permission to read {where}; it reads ConfigMaps of namespace {NAMESPACE}, and "
            "of others with a Role there"
        )
        raise UserDataForbidden(text) from error
    return value_of(found, named.key, where), ""
