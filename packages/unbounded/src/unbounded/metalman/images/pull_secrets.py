"""Registry logins from pull secrets, which are read by name."""

from __future__ import annotations

from typing import Final

from unbounded.api.core import SECRETS
from unbounded.fetch.failures import Denied
from unbounded.fetch.logins import RegistryLogins
from unbounded.kube.errors import Forbidden, NotFound
from unbounded.kube.port import Api
from unbounded.metalman.images.references import PullSecret

CONFIG_KEY: Final = ".dockerconfigjson"


async def logins_of(api: Api, secret: PullSecret | None, others: RegistryLogins) -> RegistryLogins:
    """Return the logins of a pull secret, followed by `others`. Each call reads the Secret, as users correct Secrets.

    Raises:
        Denied: the Secret is missing, forbidden, or has no logins; the message names the Secret and the referring
            field.
        ApiError: the read failed.
    """
    if secret is None:
        return others
    try:
        found = await api.get(SECRETS, secret.name, namespace=secret.namespace)
    except NotFound as error:
        raise Denied(f"{secret} does not exist") from error
    except Forbidden as error:
        raise Denied(
            f"metalman has no permission to read {secret}; it reads Secrets of namespace unbounded-kube"
        ) from error
    try:
        content = found.value(CONFIG_KEY)
    except ValueError:  # the value is not base64
        content = None
    if content is None:
        raise Denied(f"{secret} has no key {CONFIG_KEY}; its type must be kubernetes.io/dockerconfigjson")
    return RegistryLogins.from_secret(content, str(secret)).joined(others)
