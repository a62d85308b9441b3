"""The agent's attestation client: gets a bootstrap token over HTTP with this machine's TPM, at the server's pace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final

import aiohttp
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from unbounded.api.failures import Rejected, Transient
from unbounded.join import attestation, tpm
from unbounded.kube.logs import Log
from unbounded.kube.tasks import run_in_thread

CALL_S: Final = 60.0

log = Log("join")


async def attest(
    url: str, machine_tpm: AbstractContextManager[tpm.Transport], *, kind: str = tpm.RSA
) -> attestation.AttestedToken:
    """Attest by the TPM; return the token, with the cluster's CA if the server returns one.

    Args:
        url: Attest.URL of the agent's configuration.
        machine_tpm: `tpm.device()`; it is opened and closed in a thread. On cancellation it is closed only once the TPM
            has answered and the agent's objects in it are removed.
        kind: of the endorsement key, `tpm.RSA` or `tpm.ECC`.
    Raises:
        Transient: no answer, or "later", five times.
        Rejected: the server refuses, or the TPM cannot be used.
    """
    try:
        async with _opened(machine_tpm, kind) as machine:
            return await _token(machine, attestation.attest_url(url))
    except OSError as error:
        raise Rejected(f"TPM: {error.strerror or error}") from error
    except tpm.TpmError as error:
        raise Rejected(f"TPM: {error}") from error
    except attestation.AttestationFailed as error:
        raise Rejected(f"attestation at Attest.URL: {error}") from error


@dataclass(frozen=True)
class _Machine:
    """An open TPM with its loaded keys, and the certificate of the endorsement key."""

    certificate: bytes
    keys: tpm.Keys


@asynccontextmanager
async def _opened(machine_tpm: AbstractContextManager[tpm.Transport], kind: str) -> AsyncIterator[_Machine]:
    stack = ExitStack()

    def enter() -> _Machine:
        machine = tpm.Tpm(stack.enter_context(machine_tpm))
        return _Machine(machine.certificate(kind), stack.enter_context(machine.keys(kind)))

    try:
        yield await run_in_thread(enter)
    finally:
        await run_in_thread(stack.close)


async def _token(machine: _Machine, url: str) -> attestation.AttestedToken:
    keys = machine.keys
    async with aiohttp.ClientSession() as session:
        for attempt in range(1, attestation.TRIES + 1):
            exchange = attestation.Exchange(keys, machine.certificate, _open)
            try:
                return await _exchanged(session, url, exchange)
            except attestation.TryAgain as error:
                after_s = attestation.wait_s(attempt, error.after_s)
                log.warning("not attested yet", error=error, attempt=attempt)
            if attempt < attestation.TRIES:
                await asyncio.sleep(after_s)
    raise Transient(f"attestation at Attest.URL: no token in {attestation.TRIES} attempts")


async def _exchanged(
    session: aiohttp.ClientSession, url: str, exchange: attestation.Exchange
) -> attestation.AttestedToken:
    while True:
        answer = await _posted(session, url, exchange.message)
        token = await run_in_thread(exchange.take, *answer)  # uses the TPM
        if token is not None:
            return token


async def _posted(session: aiohttp.ClientSession, url: str, message: bytes) -> tuple[int, str, bytes]:
    """Return status, Retry-After, and body. No message has the URL: its path is a credential of this machine's
    requests.
    """
    try:
        async with (
            asyncio.timeout(CALL_S),
            session.post(
                url, data=message, headers={"Content-Type": "application/json"}, allow_redirects=False
            ) as answer,
        ):
            content = await answer.content.read(attestation.LARGEST + 1)
            while len(content) <= attestation.LARGEST and (more := await answer.content.read(attestation.LARGEST)):
                content += more
            return answer.status, answer.headers.get("Retry-After", ""), content
    except (aiohttp.InvalidURL, aiohttp.ClientResponseError) as error:  # their texts have the URL
        raise attestation.TryAgain(f"the answer is not HTTP ({type(error).__name__})") from None
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise attestation.TryAgain(f"no answer: {error}") from error


def _open(key: bytes, nonce: bytes, sealed: bytes) -> bytes:
    try:
        return AESGCM(key).decrypt(nonce, sealed, None)
    except (InvalidTag, ValueError) as error:
        raise attestation.AttestationFailed("the sealed answer cannot be decrypted with the key of this TPM") from error
