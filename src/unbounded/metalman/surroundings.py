"""What netboot templates are told beside the Machine, out of the facts of the cluster."""

from __future__ import annotations

from unbounded.api.failures import Rejected
from unbounded.api.machine import Machine
from unbounded.api.node_settings import NodeSettings, node_settings
from unbounded.join.agent_config import agent_config_json
from unbounded.join.configurations import NoVersion, bound_version
from unbounded.join.facts import FactsFollower
from unbounded.join.finding import PlainSecrets, TokenFinder
from unbounded.kube.errors import ApiError
from unbounded.kube.port import Api
from unbounded.metalman.netboot.ports import NotKnown
from unbounded.metalman.templates import Surroundings


class ClusterSurroundings:
    """Surroundings of a template, made anew for each file, as facts change while hosts boot.

    Attestation brings a host its token. One whose Machine names a token gets that in its configuration instead.
    """

    def __init__(self, api: Api, follower: FactsFollower) -> None:
        self._api = api
        self._follower = follower
        self._tokens = TokenFinder(api, PlainSecrets(api))

    async def surroundings(self, machine: Machine, serve_url: str, *, private: bool) -> Surroundings:
        """All of it.

        Args:
            serve_url: the URL of this boot, with its prefix; the agent attests under it.
            private: the file goes to a client that knows the prefix; a token stands in no other.
        Raises:
            NotKnown: the cluster is not known yet, or the Machine's configuration or token cannot be read.
            Rejected: the token that the Machine names lets no host join.
        """
        facts = self._follower.facts
        if facts is None:
            raise NotKnown("the cluster's address and certificates are not known yet")
        settings = await self._settings(machine)
        return Surroundings(
            apiserver_url=facts.apiserver_url,
            serve_url=serve_url,
            kubernetes_version=facts.kubernetes_version,
            cluster_dns=facts.cluster_dns,
            agent_config_json=agent_config_json(
                machine,
                facts,
                attest_url=None if _names_token(machine) else serve_url,
                token=await self._token(machine) if private and _names_token(machine) else None,
                settings=settings,
            ),
        )

    async def _token(self, machine: Machine) -> str:
        try:
            found = await self._tokens.find(machine)
        except ApiError as error:
            raise NotKnown(f"the Machine's bootstrap token cannot be read: {error}") from error
        if found.token is None:
            raise Rejected(found.need or "there is no bootstrap token")
        return found.token.text.reveal()

    async def _settings(self, machine: Machine) -> NodeSettings | None:
        """Return the settings of the Machine's configuration; none where it names one that is not there, for which the
        agent waits."""
        ref = machine.spec.configuration_ref
        try:
            return None if ref is None else node_settings((await bound_version(self._api, ref)).spec.template)
        except NoVersion:
            return None
        except ApiError as error:
            raise NotKnown(f"the Machine's configuration cannot be read: {error}") from error


def _names_token(machine: Machine) -> bool:
    kubernetes = machine.spec.kubernetes
    return kubernetes is not None and kubernetes.bootstrap_token_ref is not None
