"""Logins for a site's machines of a provider: the one credential for both, its Secret and its session."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from unbounded.api import core
from unbounded.api.core import SECRETS
from unbounded.api.credential import AuthMode, MachineOperationCredential
from unbounded.api.fields import Cause
from unbounded.api.machine_spec import SecretReference
from unbounded.kube.api import Api, Forbidden, NotFound
from unbounded.kube.logs import Log, SecretStr
from unbounded.machineops import reasons
from unbounded.machineops.provider import Budget, Login, Provider, Session
from unbounded.operations.executor_protocol import Refusal

SECRET_MAX_AGE_S: Final = 30.0  # longest use of a Secret before it is read again
CLOSE_S: Final = 5.0

log = Log("machine-ops-controller")


@dataclass(frozen=True)
class SelectedLogin:
    """A login, and the objects that it was made of. A change of one of these needs another session.

    Args:
        secret: NAMESPACE/NAME of its Secret; empty for a login without one.
    """

    login: Login
    made_of: tuple[str, ...]
    secret: str = ""


def select_credential(
    credentials: Iterable[MachineOperationCredential], site: str, provider: str
) -> MachineOperationCredential:
    """Select the credential for a site and provider.

    Raises:
        Refusal: there is none or more than one, or the Machine has no site.
    """
    if not site:
        raise Refusal(
            reasons.AUTH_INVALID,
            "the Machine has no site, which selects its credential: add the label unbounded-cloud.io/site",
            Cause(code=reasons.SITE_MISSING),
        )
    found = [one for one in credentials if one.spec.site_name == site and one.spec.provider == provider]
    where = f"spec.siteName {site!r} and spec.provider {provider!r}"
    if not found:
        raise Refusal(reasons.AUTH_NOT_FOUND, f"no MachineOperationCredential has {where}: create one")
    if len(found) > 1:
        names = ", ".join(sorted(one.metadata.name for one in found))
        raise Refusal(reasons.AUTH_AMBIGUOUS, f"{names} all have {where}: keep only one of them")
    return found[0]


def mode_of(credential: MachineOperationCredential, provider: Provider) -> AuthMode:
    """Return the authentication mode of a credential.

    Raises:
        Refusal: the mode is unknown, or the provider does not support it.
    """
    mode = credential.spec.auth.mode
    takes = ", ".join(sorted(provider.modes))
    if mode not in provider.modes:
        raise Refusal(
            reasons.AUTH_INVALID,
            f"MachineOperationCredential {credential.metadata.name}: spec.auth.mode is {mode!r}; "
            f"{provider.name} supports: {takes}",
            reasons.credential_cause(reasons.CREDENTIAL_INVALID, credential.metadata.name),
        )
    return AuthMode(mode)


def secret_of(credential: MachineOperationCredential, namespace: str) -> SecretReference:
    """Return the Secret that an ExternalPlugin credential names.

    Raises:
        Refusal: it names none, or one of another namespace.
    """
    name = credential.metadata.name
    reference, where = credential.spec.auth.secret_ref, f"MachineOperationCredential {name}"
    invalid = reasons.credential_cause(reasons.CREDENTIAL_INVALID, name)
    if reference is None or not reference.name or not reference.namespace:
        raise Refusal(
            reasons.AUTH_INVALID,
            f"{where}: mode ExternalPlugin needs name and namespace in spec.auth.secretRef",
            invalid,
        )
    if reference.namespace != namespace:
        raise Refusal(
            reasons.AUTH_SECRET_FORBIDDEN,
            f"{where}: spec.auth.secretRef.namespace is {reference.namespace!r}; the controller reads Secrets "
            f"of {namespace!r} only (--credential-secret-namespace)",
            invalid,
        )
    return reference


class CredentialSource(Protocol):
    """Source of all credentials, such as their cache."""

    def all(self) -> Iterable[MachineOperationCredential]: ...


@dataclass(frozen=True)
class _ReadSecret:
    at: float
    fields: Mapping[str, SecretStr]
    version: tuple[str, str]


class SiteLogins:
    """Logins of one provider.

    Args:
        namespace: the only allowed namespace of Secrets.
        reader: subject and verb of the message that the Secret may not be read.
    """

    def __init__(
        self,
        api: Api,
        credentials: CredentialSource,
        provider: Provider,
        *,
        namespace: str,
        reader: str = "this controller has",
        loop_time: Callable[[], float] | None = None,
    ) -> None:
        self._api = api
        self._reader = reader
        self._credentials = credentials
        self._provider = provider
        self._namespace = namespace
        self._loop_time = loop_time or (lambda: asyncio.get_running_loop().time())
        self._read: dict[str, _ReadSecret] = {}

    async def login_for(self, site: str) -> SelectedLogin:
        """Return the login for Machines of a site.

        Raises:
            Refusal: there is no usable one; the reasons are part of the API.
        """
        credential = select_credential(self._credentials.all(), site, self._provider.name)
        mode = mode_of(credential, self._provider)
        made_of = (credential.metadata.uid, str(credential.metadata.generation))
        if mode is not AuthMode.EXTERNAL_PLUGIN:
            return SelectedLogin(Login(credential.metadata.name, mode), made_of)
        reference = secret_of(credential, self._namespace)
        secret = await self._secret(reference, credential.metadata.name)
        login = Login(credential.metadata.name, mode, secret.fields)
        return SelectedLogin(login, made_of + secret.version, _place(reference))

    def invalidate(self) -> None:
        """Drop cached Secrets: the user may have corrected a refused one."""
        self._read.clear()

    def _held(self, secret: core.Secret, reference: SecretReference) -> Mapping[str, SecretStr]:
        fields = {key: secret.value(key) or b"" for key in secret.data}
        missing = [key for key in self._provider.secret_keys if not fields.get(key)]
        if missing:
            there, lacks = ", ".join(sorted(fields)) or "none", ", ".join(missing)
            raise Refusal(
                reasons.AUTH_INVALID,
                f"Secret {_place(reference)} lacks {lacks}, which {self._provider.name} needs; its keys: {there}",
                reasons.secret_cause(reasons.SECRET_INCOMPLETE, _place(reference), lacks),
            )
        return {key: SecretStr(value.decode("utf-8", "replace")) for key, value in fields.items()}

    async def _secret(self, reference: SecretReference, credential: str) -> _ReadSecret:
        now = self._loop_time()
        there = self._read.get(reference.name)
        if there is not None and now - there.at < SECRET_MAX_AGE_S:
            return there
        message = f"Secret {_place(reference)} (spec.auth.secretRef of MachineOperationCredential {credential})"
        try:
            found = await self._api.get(SECRETS, reference.name, namespace=reference.namespace)
        except NotFound as error:
            keys = ", ".join(self._provider.secret_keys)
            needs = f"; {self._provider.name} needs the keys {keys}" if keys else ""
            cause = reasons.secret_cause(reasons.SECRET_MISSING, _place(reference), keys, credential)
            raise Refusal(reasons.AUTH_SECRET_NOT_FOUND, f"{message} does not exist{needs}", cause) from error
        except Forbidden as error:
            cause = reasons.credential_cause(reasons.CREDENTIAL_INVALID, credential)
            raise Refusal(
                reasons.AUTH_SECRET_FORBIDDEN, f"{self._reader} no permission to read {message}", cause
            ) from error
        version = (found.metadata.uid, found.metadata.resource_version or "")
        read = self._read[reference.name] = _ReadSecret(now, self._held(found, reference), version)
        return read


def _place(reference: SecretReference) -> str:
    return f"{reference.namespace}/{reference.name}"


@dataclass
class _Open:
    made_of: tuple[str, ...]
    session: Session
    credential: str
    calls: int = 0


class Sessions:
    """One session at a time. After a change of the credential, the old session closes once its calls have ended."""

    def __init__(self, provider: Provider, site: str, logins: SiteLogins, budget: Budget) -> None:
        self._provider = provider
        self._site = site
        self._logins = logins
        self._budget = budget
        self._open: _Open | None = None

    @asynccontextmanager
    async def use(self) -> AsyncIterator[Session]:
        """Provide a session for the calls in the block.

        Raises:
            Refusal: there is no usable credential.
        """
        try:
            chosen = await self._logins.login_for(self._site)
            before = used = self._open
            if used is None or used.made_of != chosen.made_of:
                used = self._open = _Open(chosen.made_of, self._connect(chosen), chosen.login.name)
        except Refusal:
            self._logins.invalidate()  # the user may have corrected the Secret before the next attempt
            raise
        used.calls += 1
        try:
            if before is not None and before is not used and before.calls == 0:
                await _closed(before.session)
            yield used.session
        finally:
            used.calls -= 1
            if used.calls == 0 and used is not self._open:
                await _closed(used.session)

    def invalidate_login(self) -> str:
        """Drop the cached Secret of a refused login: the user may have corrected it.

        Returns:
            The MachineOperationCredential of the login.
        """
        self._logins.invalidate()
        return self._open.credential if self._open is not None else ""

    async def close(self) -> None:
        """Close the session, if there is one."""
        used, self._open = self._open, None
        if used is not None:
            await _closed(used.session)

    def _connect(self, chosen: SelectedLogin) -> Session:
        try:
            return self._provider.connect(chosen.login, self._budget)
        except ValueError as error:
            raise _unusable(chosen, str(error)) from error


def _unusable(chosen: SelectedLogin, message: str) -> Refusal:
    """Return the refusal of a login that the provider cannot use; names the keys of the Secret in the message."""
    name = chosen.login.name
    if not chosen.secret:
        cause = reasons.credential_cause(reasons.CREDENTIAL_INVALID, name)
        return Refusal(reasons.AUTH_INVALID, f"MachineOperationCredential {name}: {message}", cause)
    keys = ", ".join(key for key in chosen.login.secret if re.search(rf"(?<!\w){re.escape(key)}(?!\w)", message))
    wrong = f"Secret {chosen.secret} is invalid{keys and f' in {keys}'}: {message}"
    cause = reasons.secret_cause(reasons.SECRET_INVALID, chosen.secret, keys, name)
    return Refusal(reasons.AUTH_INVALID, f"MachineOperationCredential {name}: {wrong}", cause)


async def _closed(session: Session) -> None:
    try:
        async with asyncio.timeout(CLOSE_S):
            await session.close()
    except Exception as error:  # a failing `close` of a third-party session has no effect on operations
        log.warning("cannot close session", error=error)
