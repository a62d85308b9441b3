"""Bearer tokens: of service accounts, bootstrap tokens, and delegated tokens of running requests.

Service account tokens are issued on request, with a lifetime and audiences, and valid while the account exists. A token
is bound to its account, and to a Secret, Pod or Node if the request names one. It is a JSON Web Token with ES256 (RFC
7515, 7518, 7519), and no other algorithm of these.

Bootstrap tokens are Secrets of kube-system with which a new machine authenticates.

With a delegated token an extension acts as the user of the request that it answers, and as no other one.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

from unbounded.kube.durable_files import write_durably
from unbounded_apiserver import field_errors, metadata, status
from unbounded_apiserver.access import resource_types as kinds
from unbounded_apiserver.access.rbac_authorizer import account_groups, account_name
from unbounded_apiserver.auth import AUTHENTICATED, CREDENTIAL, RequestCredentials, User
from unbounded_apiserver.builtin_resources import NODES, SECRETS, SERVICE_ACCOUNTS
from unbounded_apiserver.resource_model import Object, Resource, ResourcePath
from unbounded_apiserver.schema import FieldError
from unbounded_apiserver.store import Store
from unbounded_apiserver.workloads.pods import PODS

ALGORITHM: Final = "ES256"
NUMBER_BYTES: Final = 32
TOKEN_CHARACTERS: Final = 16 * 1024
ISSUER: Final = "https://kubernetes.default.svc.cluster.local"
DEFAULT_S: Final = 3600
SHORTEST_S: Final = 600
LONGEST_S: Final = 1 << 32
VERIFIED: Final = 1024  # cached tokens whose signature is verified
_CLAIM: Final = "kubernetes.io"
GONE_AFTER: Final = timedelta(seconds=60)  # an object that is being deleted may use its token to clean up
BINDABLE: Final[Mapping[str, Resource]] = {resource.kind: resource for resource in (SECRETS, PODS, NODES)}
_EXTRA: Final = "authentication.kubernetes.io"
Claim = Mapping[str, Any]  # namespace, serviceaccount, and optionally secret, pod, node: each with name and uid
NAMESPACE: Final = "kube-system"
PREFIX: Final = "bootstrap-token-"
TYPE: Final = "bootstrap.kubernetes.io/token"
GROUP: Final = "system:bootstrappers"
_TOKEN: Final = re.compile(r"([a-z0-9]{6})\.([a-z0-9]{16})")
_EXTRA_GROUP: Final = re.compile(r"system:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]")
DELEGATED_BYTES: Final = 32


class BadToken(Exception):
    """A token that this key has not signed."""


class TokenKey:
    """The key that signs tokens: `sa.key` (0600) in the directory, made on first use."""

    def __init__(self, directory: Path) -> None:
        path = directory / "sa.key"
        if not path.exists():
            write_durably(path, _pem(ec.generate_private_key(ec.SECP256R1())))
        loaded = serialization.load_pem_private_key(path.read_bytes(), None)
        self._key = cast("ec.EllipticCurvePrivateKey", loaded)
        self._public = self._key.public_key()
        encoded = self._public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        self.id = _encode(hashlib.sha256(encoded).digest())

    def sign(self, claims: dict[str, Any]) -> str:
        header = msgspec.json.encode({"alg": ALGORITHM, "kid": self.id})
        signed = f"{_encode(header)}.{_encode(msgspec.json.encode(claims))}"
        r, s = decode_dss_signature(self._key.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
        return f"{signed}.{_encode(r.to_bytes(NUMBER_BYTES) + s.to_bytes(NUMBER_BYTES))}"

    def verify(self, token: str) -> dict[str, Any]:
        """Return the claims of a token of this key; the caller checks their validity. Raises BadToken."""
        if len(token) > TOKEN_CHARACTERS or token.count(".") != 2:
            raise BadToken("not a token")
        signed, _, signature = token.rpartition(".")
        header, _, claims = signed.partition(".")
        found = _object(header)
        if found.get("alg") != ALGORITHM or found.get("kid") != self.id or "crit" in found:
            raise BadToken("signed with another key")
        raw = _decode(signature)
        if len(raw) != 2 * NUMBER_BYTES:
            raise BadToken("the signature has the wrong length")
        numbers = (int.from_bytes(raw[:NUMBER_BYTES]), int.from_bytes(raw[NUMBER_BYTES:]))
        try:
            self._public.verify(encode_dss_signature(*numbers), signed.encode(), ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            raise BadToken("the signature is wrong") from None
        return _object(claims)


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise BadToken("not base64url") from None


def _object(part: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(_decode(part), type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise BadToken("not a JSON object") from None


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


class AccountTokens:
    """Issue and verify tokens of service accounts (an Authenticator)."""

    def __init__(self, store: Store, key: TokenKey, now: Callable[[], datetime]) -> None:
        self._bindings = TokenBindings(store, now)
        self._key = key
        self._now = now
        self._verified = lru_cache(VERIFIED)(key.verify)

    def authenticate(self, credentials: RequestCredentials) -> User | None:
        token = bearer(credentials.headers)
        return self.identify(token, (ISSUER,)) if token else None

    def identify(self, token: str, audiences: Sequence[str]) -> User | None:
        """Return the user of a token, if the token is valid now for one of the audiences."""
        try:
            claims = self._verified(token)
        except BadToken:
            return None
        moment = self._now().timestamp()
        if claims["iss"] != ISSUER or not claims["nbf"] <= moment < claims["exp"]:
            return None
        if not set(audiences) & set(claims["aud"]):
            return None
        about: Mapping[str, Any] = claims[_CLAIM]
        if not self._bindings.are_valid(about):
            return None
        namespace, account = about["namespace"], about["serviceaccount"]
        groups = (*account_groups(namespace), AUTHENTICATED)
        extra = {CREDENTIAL: (f"JTI={claims['jti']}",), **user_extra(about)}
        return User(account_name(namespace, account["name"]), groups, account["uid"], extra)

    def audiences(self, token: str) -> list[str]:
        """Return the audiences of a valid token."""
        return list(self._verified(token)["aud"])

    def issue(self, _user: User, place: ResourcePath, request: Object) -> None:
        """Answer a TokenRequest: its status gets a token. Raises StatusError (400, 404, 409, 422)."""
        _check_account(place, request["metadata"])
        spec = request["spec"]
        spec["audiences"] = spec.get("audiences") or [ISSUER]
        spec["expirationSeconds"] = seconds = spec.get("expirationSeconds", DEFAULT_S)
        spec.setdefault("boundObjectRef", None)
        if errors := _check_duration(seconds):
            raise status.invalid(kinds.AUTHENTICATION, kinds.TOKEN_REQUESTS.kind, "", errors)
        about = self._bindings.bind(place.namespace, place.name, spec["boundObjectRef"])
        now = self._now()
        begin = int(now.timestamp())
        claims = {
            "aud": spec["audiences"],
            "exp": begin + seconds,
            "iat": begin,
            "iss": ISSUER,
            "jti": metadata.new_uid(),
            _CLAIM: about,
            "nbf": begin,
            "sub": account_name(place.namespace, place.name),
        }
        request["metadata"] |= {
            "name": place.name,
            "namespace": place.namespace,
            "uid": about["serviceaccount"]["uid"],
            "creationTimestamp": metadata.format_time(now),
        }
        expires = metadata.format_time(datetime.fromtimestamp(begin, UTC) + timedelta(seconds=seconds))
        request["status"] = {"token": self._key.sign(claims), "expirationTimestamp": expires}


def bearer(headers: Mapping[str, str]) -> str:
    """Return the token of an Authorization header, '' without one."""
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _check_account(place: ResourcePath, meta: Object) -> None:
    """Check that a request names the account of its URL, if it names one. Raises StatusError (422)."""
    for key, expected in (("name", place.name), ("namespace", place.namespace)):
        if meta.get(key) and meta[key] != expected:
            why = f"must match the service account {key} if specified"
            errors = [field_errors.invalid(f"metadata.{key}", meta[key], why)]
            raise status.invalid(kinds.AUTHENTICATION, kinds.TOKEN_REQUESTS.kind, place.name, errors)


def _check_duration(seconds: int) -> list[FieldError]:
    where = "spec.expirationSeconds"
    if seconds < SHORTEST_S:
        return [field_errors.invalid(where, seconds, "may not specify a duration less than 10 minutes")]
    if seconds > LONGEST_S:
        return [field_errors.invalid(where, seconds, "may not specify a duration larger than 2^32 seconds")]
    return []


class TokenBindings:
    """Bindings of tokens to the objects of one store."""

    def __init__(self, store: Store, now: Callable[[], datetime]) -> None:
        self._store = store
        self._now = now

    def bind(self, namespace: str, account: str, reference: Mapping[str, str] | None) -> Object:
        """Return the claim of a new token. Raises StatusError (400, 404, 409)."""
        about: Object = {"namespace": namespace, "serviceaccount": self._claim(SERVICE_ACCOUNTS, namespace, account)}
        if reference is None:
            return about
        kind = reference.get("kind", "")
        resource = BINDABLE.get(kind) if reference.get("apiVersion", "v1") == "v1" else None
        if resource is None:
            shown = f"{reference.get('apiVersion', '')}, Kind={kind}"
            raise status.bad_request(f"cannot bind token to object of type {shown}")
        name = reference.get("name", "")
        about[kind.lower()] = claim = self._claim(resource, namespace, name)
        if resource is PODS:
            self._check_pod(namespace, account, name, about)
        if reference.get("uid", "") not in {"", claim["uid"]}:
            why = (
                f"the UID in the bound object reference ({reference['uid']}) does not match the UID in record. "
                "The object might have been deleted and then recreated"
            )
            raise status.conflict("", resource.plural, name, why)
        return about

    def _check_pod(self, namespace: str, account: str, name: str, about: Object) -> None:
        """Require that the account is the Pod's, and add the Pod's node to the claim."""
        spec = (self._get(PODS, namespace, name) or {}).get("spec") or {}
        if spec.get("serviceAccountName", "") != account:
            why = f'cannot bind token for serviceaccount "{account}" to pod running with different serviceaccount name.'
            raise status.bad_request(why)
        if node := spec.get("nodeName"):
            known = self._get(NODES, "", node)
            about["node"] = {"name": node} | ({"uid": known["metadata"]["uid"]} if known else {})

    def are_valid(self, about: Claim) -> bool:
        """Return whether all objects that a token is bound to still exist."""
        namespace = about["namespace"]
        bound = [(SERVICE_ACCOUNTS, about["serviceaccount"])]
        bound += [(SECRETS, about["secret"])] if "secret" in about else []
        if "pod" in about:  # a Pod's node is information, and no condition
            bound.append((PODS, about["pod"]))
        elif "node" in about:
            bound.append((NODES, about["node"]))
        return all(self._is_there(resource, namespace, claim) for resource, claim in bound)

    def _is_there(self, resource: Resource, namespace: str, claim: Mapping[str, str]) -> bool:
        found = self._get(resource, namespace, claim["name"])
        if found is None or found["metadata"]["uid"] != claim["uid"]:
            return False
        deleted = found["metadata"].get("deletionTimestamp")
        return deleted is None or self._now() < datetime.fromisoformat(deleted) + GONE_AFTER

    def _claim(self, resource: Resource, namespace: str, name: str) -> dict[str, str]:
        found = self._get(resource, namespace, name)
        if found is None:
            raise status.not_found("", resource.plural, name)
        return {"name": name, "uid": found["metadata"]["uid"]}

    def _get(self, resource: Resource, namespace: str, name: str) -> Object | None:
        record = self._store.get(resource.name, resource.key(namespace, name))
        return record.decode() if record is not None else None


def user_extra(about: Claim) -> dict[str, tuple[str, ...]]:
    """Return the extra fields of a token's user."""
    bound = ((kind, key, value) for kind in ("node", "pod") for key, value in about.get(kind, {}).items())
    return {f"{_EXTRA}/{kind}-{key}": (value,) for kind, key, value in bound}


class BootstrapTokens:
    """Authenticator by bootstrap tokens that permit authentication and have not expired."""

    def __init__(self, store: Store, now: Callable[[], datetime]) -> None:
        self._store = store
        self._now = now

    def authenticate(self, credentials: RequestCredentials) -> User | None:
        found = _TOKEN.fullmatch(bearer(credentials.headers))
        if found is None:
            return None
        identity, secret = found.groups()
        record = self._store.get(SECRETS.name, SECRETS.key(NAMESPACE, f"{PREFIX}{identity}"))
        token = token_of(record.decode(), "usage-bootstrap-authentication", self._now()) if record is not None else None
        if token is None or not hmac.compare_digest(token.secret.encode(), secret.encode()):
            return None
        if not all(map(_EXTRA_GROUP.fullmatch, token.groups)):
            return None
        return User(f"system:bootstrap:{identity}", (GROUP, *token.groups, AUTHENTICATED))


class StoredBootstrapToken(NamedTuple):
    """A bootstrap token from its Secret."""

    id: str
    secret: str
    groups: tuple[str, ...]

    def __repr__(self) -> str:
        return f"BootstrapToken({self.id})"


def token_of(secret: Mapping[str, Any], usage: str, now: datetime) -> StoredBootstrapToken | None:
    """Return the token of a Secret that is valid for a usage now, None if there is none.

    Args:
        usage: the key of the Secret that allows it.
    """
    if secret.get("type") != TYPE or "deletionTimestamp" in secret["metadata"]:
        return None
    data = {key: base64.b64decode(value).decode(errors="replace") for key, value in (secret.get("data") or {}).items()}
    identity, text = data.get("token-id", ""), data.get("token-secret", "")
    if secret["metadata"]["name"] != f"{PREFIX}{identity}" or not identity or not text or data.get(usage) != "true":
        return None
    ends = expiration(secret)
    if ends is not None and now >= ends:
        return None
    return StoredBootstrapToken(
        identity, text, tuple(group for group in data.get("auth-extra-groups", "").split(",") if group)
    )


def expiration(secret: Mapping[str, Any]) -> datetime | None:
    """Return the expiration of a token, None for a token without one; an unreadable expiration is in the past."""
    encoded = (secret.get("data") or {}).get("expiration", "")
    text = base64.b64decode(encoded).decode(errors="replace")
    if not text:
        return None
    try:
        end = datetime.fromisoformat(text)
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)
    return end if end.tzinfo is not None else end.replace(tzinfo=UTC)


class DelegatedTokens:
    """The tokens of running requests (an Authenticator). They are in memory alone."""

    def __init__(self) -> None:
        self._users: dict[str, User] = {}

    @contextmanager
    def lend(self, user: User) -> Iterator[str]:
        """Return a token that is good for the user while inside."""
        token = secrets.token_urlsafe(DELEGATED_BYTES)
        self._users[token] = user
        try:
            yield token
        finally:
            del self._users[token]

    def authenticate(self, credentials: RequestCredentials) -> User | None:
        return self._users.get(bearer(credentials.headers)) if self._users else None
