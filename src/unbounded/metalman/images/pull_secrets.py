"""Logins to registries out of pull secrets, read by name."""

from __future__ import annotations

from typing import Final

from unbounded.api.core import SECRETS
from unbounded.fetch.failures import Denied
from unbounded.fetch.logins import Logins
from unbounded.kube.errors import Forbidden, NotFound
from unbounded.kube.port import Api
from unbounded.metalman.images.wants import PullSecret

CONFIG_KEY: Final = ".dockerconfigjson"


async def logins_of(api: Api, secret: PullSecret | None, others: Logins) -> Logins:
    """The logins of a pull secret, before others. It is read each time, as Secrets are corrected.

    Raises:
        Denied: it is not there, out of reach, or holds no logins; the message names it and the field that does.
        ApiError: it could not be read.
    """
    if secret is None:
        return others
    try:
        found = await api.get(SECRETS, secret.name, namespace=secret.namespace)
    except NotFound as error:
        raise Denied(f"{secret} does not exist") from error
    except Forbidden as error:
        raise Denied(f"{secret} is out of metalman's reach; it reads those of namespace unbounded-kube") from error
    try:
        content = found.value(CONFIG_KEY)
    except ValueError:  # not base64
        content = None
    if content is None:
        raise Denied(f"{secret} has no key {CONFIG_KEY}; type kubernetes.io/dockerconfigjson is wanted")
    return Logins.from_secret(content, str(secret)).joined(others)
