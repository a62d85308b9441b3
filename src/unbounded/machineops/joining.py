"""What a replaced host makes itself a node with: user data for cloud-init."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from unbounded.api import core
from unbounded.api.core import SECRETS
from unbounded.api.machine import Machine
from unbounded.join.agent_config import agent_config
from unbounded.join.cloud_config import cloud_config
from unbounded.join.facts import FactsFollower
from unbounded.join.finding import TokenFinder
from unbounded.join.install import AgentOrigin, origin_of, with_image, with_key, with_mirror
from unbounded.kube.errors import NotFound
from unbounded.kube.port import Api
from unbounded.machineops.reasons import BOOTSTRAP_DATA_FAILED
from unbounded.operations.ports import Refusal

NO_KUBERNETES: Final = "has no spec.kubernetes, with which a new host could join"


class PlainSecrets:
    """Secrets as they are now: a replacement reads one or two, and is rare."""

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
class Joining:
    """Args:
    mirror: where hosts download what their Machine gives no place for; empty for the projects' own places.
    image: root file system of nodes whose Machine names none.
    """

    facts: FactsFollower
    tokens: TokenFinder
    origin: AgentOrigin
    mirror: str = ""
    image: str = ""

    async def user_data(self, machine: Machine) -> str:
        """`#cloud-config` for a new host of this Machine; there is a token in it.

        Raises:
            Refusal: something for it is missing.
        """
        if machine.spec.kubernetes is None:
            raise Refusal(BOOTSTRAP_DATA_FAILED, f"Machine {machine.name} {NO_KUBERNETES}")
        facts = self.facts.facts
        if facts is None:
            raise Refusal(BOOTSTRAP_DATA_FAILED, f"the cluster is not known well enough: {self.facts.missing}")
        found = await self.tokens.find(machine)
        if found.token is None:
            raise Refusal(BOOTSTRAP_DATA_FAILED, found.need or "there is no bootstrap token")
        origin = origin_of(machine.spec.agent, self.origin)
        if origin.fault:
            raise Refusal(BOOTSTRAP_DATA_FAILED, origin.fault)
        config = agent_config(machine, facts, token=found.token.text.reveal())
        config = with_key(with_image(with_mirror(config, self.mirror), self.image), origin.public_key)
        return cloud_config(config, origin)
