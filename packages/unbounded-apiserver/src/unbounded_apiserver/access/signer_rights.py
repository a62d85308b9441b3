"""Rights to approve and sign certificate requests, and requests that are always rejected."""

from __future__ import annotations

import base64
from typing import Final

from unbounded_apiserver import status
from unbounded_apiserver.auth import AuthAttributes, AuthChain, User
from unbounded_apiserver.certificates import csr, signers
from unbounded_apiserver.certificates.csr_types import GROUP, REQUESTS
from unbounded_apiserver.pki import MASTERS
from unbounded_apiserver.resource_model import Object, Resource
from unbounded_apiserver.status import StatusError

SIGNERS: Final = "signers"  # a resource that exists only in rules: its names are signers, or `domain/*`


def set_requesting_user(user: User, resource: Resource, obj: Object, old: Object | None) -> None:
    """Set the requesting user of a new request, in place of the client's own value."""
    if resource is REQUESTS and old is None:
        spec = {k: v for k, v in obj["spec"].items() if k not in {"username", "uid", "groups", "extra"}}
        obj["spec"] = {**spec, **user.info()}


class SignerRights:
    """Reject approval and signing without the right to the signer, and requests for an administrator's certificate."""

    def __init__(self, guard: AuthChain) -> None:
        self._guard = guard

    def check(self, user: User, resource: Resource, subresource: str, obj: Object, old: Object | None) -> None:
        """Check the write of a request. Raises StatusError (403)."""
        if resource is not REQUESTS:
            return
        if old is None:
            _check_subject(obj)
        elif subresource == "approval":
            self._require(user, "approve", old)
        elif subresource == "status" and obj["status"] != old["status"]:
            self._require(user, "sign", old)

    def _require(self, user: User, verb: str, request: Object) -> None:
        """Require a verb on the signer of the stored request, not of the one that was sent."""
        signer = request["spec"]["signerName"]
        names = (signer, f"{signer.partition('/')[0]}/*")
        if not any(self._guard.decide(user, AuthAttributes(verb, GROUP, SIGNERS, name=name)).allowed for name in names):
            raise _refused(request, f'user not permitted to {verb} requests with signerName "{signer}"')


def _check_subject(request: Object) -> None:
    """Reject subjects in system:masters: approvers could otherwise create administrators, whom no rule limits."""
    spec = request["spec"]
    if spec["signerName"] != signers.CLIENT:
        return
    if MASTERS in csr.parse_csr(base64.b64decode(spec["request"])).organizations:
        raise _refused(request, f"use of {signers.CLIENT} signer with {MASTERS} group is not allowed")


def _refused(request: Object, why: str) -> StatusError:
    return status.forbidden(GROUP, REQUESTS.plural, request["metadata"]["name"], why)
