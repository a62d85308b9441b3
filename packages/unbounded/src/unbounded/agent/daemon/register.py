"""The Machine of this host, created by the agent where there is none."""

from __future__ import annotations

from typing import Any, Final

from unbounded.api.failures import Rejected
from unbounded.api.machine import MACHINES
from unbounded.api.names import LABEL_MACHINE, LABEL_SITE
from unbounded.join.agent_config import AgentConfig
from unbounded.join.tokens import secret_name
from unbounded.kube.errors import AlreadyExists, Forbidden, InvalidObject, NotFound
from unbounded.kube.logs import Log
from unbounded.kube.port import Api

_OURS: Final = frozenset({LABEL_SITE, LABEL_MACHINE})  # fields of the Machine have these already

log = Log("agent")


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
