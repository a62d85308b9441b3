"""User data for cloud-init, with which a replaced host joins as a node."""

from __future__ import annotations

from dataclasses import dataclass

from unbounded.api import core
from unbounded.api.core import SECRETS
from unbounded.api.evidence import Cause
from unbounded.api.machine import Machine
from unbounded.api.node_settings import NodeSettings, node_settings
from unbounded.join.cloud_config import cloud_config
from unbounded.join.configurations import NoVersion, bound_version
from unbounded.join.facts import FactsFollower
from unbounded.join.install import NO_DIGEST, HostDefaults, host_setup
from unbounded.join.token_finder import TokenFinder
from unbounded.kube.errors import Forbidden, NotFound
from unbounded.kube.port import Api
from unbounded.machineops import causes
from unbounded.machineops.reasons import BOOTSTRAP_DATA_FAILED
from unbounded.operations.ports import Refusal


class UncachedSecrets:
    """Uncached reader of Secrets: replacements are rare and read one or two."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def get(self, namespace: str, name: str) -> core.Secret | None:
        try:
            return await self._api.get(SECRETS, name, namespace=namespace)
        except NotFound:
            return None

    async def pace(self) -> None:
        return


@dataclass(frozen=True)
class UserDataBuilder:
    """Builder of user data.

    Args:
        defaults: settings of new hosts that their Machine does not set.
    """

    api: Api
    facts: FactsFollower
    tokens: TokenFinder
    defaults: HostDefaults

    async def build(self, machine: Machine) -> str:
        """Return `#cloud-config` for a new host of this Machine; it contains a token.

        Raises:
            Refusal: a prerequisite is missing.
        """
        if machine.spec.kubernetes is None:
            words = f"Machine {machine.name} has no spec.kubernetes, which a new host needs to join"
            raise Refusal(BOOTSTRAP_DATA_FAILED, words, Cause(code=causes.KUBERNETES_MISSING))
        facts = self.facts.facts
        if facts is None:
            words = f"facts about the cluster are missing: {self.facts.missing}"
            raise Refusal(BOOTSTRAP_DATA_FAILED, words, Cause(code=causes.FACTS_MISSING))
        found = await self.tokens.find(machine)
        if found.token is None:
            need = found.need or "no bootstrap token exists"
            raise Refusal(BOOTSTRAP_DATA_FAILED, need, Cause(code=found.reason))
        token, settings = found.token.text.reveal(), await self._settings(machine)
        setup = host_setup(machine, facts, self.defaults, token=token, settings=settings)
        if setup.origin.fault:
            code = causes.DIGEST_MISSING if setup.origin.fault == NO_DIGEST else causes.SOURCE_MISSING
            raise Refusal(BOOTSTRAP_DATA_FAILED, setup.origin.fault, Cause(code=code))
        return cloud_config(setup)

    async def _settings(self, machine: Machine) -> NodeSettings | None:
        """Return the settings of the Machine's configuration, without which a new host may have no network access."""
        ref = machine.spec.configuration_ref
        try:
            return None if ref is None else node_settings((await bound_version(self.api, ref)).spec.template)
        except (NoVersion, Forbidden) as error:
            cause = Cause(code=causes.CONFIGURATION_MISSING)
            raise Refusal(BOOTSTRAP_DATA_FAILED, f"spec.configurationRef: {error}", cause) from error
