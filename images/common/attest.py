"""Proves this machine's TPM to metalman and prints the bootstrap token; needs Python 3.10 and nothing else.

    attest.py [--ca FILE] [--tpm ADDRESS] [--kind rsa|ecc] URL

URL is the boot's (Attest.URL of the agent's configuration); /attest is appended. The token goes to standard output, and
the cluster's certificate authority to FILE. Five attempts are made, with the waits that the server asks for. What went
wrong is said on standard error: exit status 1 when the server refuses, 2 when the TPM cannot be used, 3 without an
answer. tpm.py and attestation.py of packages/unbounded/src/unbounded/join lie beside this file, and aes_gcm.py.
"""

import argparse
import os
import sys
import time
import urllib.error
import urllib.request

import aes_gcm
import attestation
import tpm

LIMIT_S = 60


def post(url, message):
    """Status, Retry-After, and body of the answer."""
    request = urllib.request.Request(url, message, {"Content-Type": "application/json"})  # noqa: S310 - as configured
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=LIMIT_S) as answer:
            return answer.status, answer.headers.get("Retry-After", ""), answer.read(attestation.LARGEST + 1)
    except urllib.error.HTTPError as error:
        return error.code, error.headers.get("Retry-After", ""), error.read(attestation.LARGEST + 1)
    except OSError as error:
        raise attestation.TryAgain(f"no answer from {url}: {error}") from None


def attempt(keys, certificate, url):
    exchange = attestation.Exchange(keys, certificate, aes_gcm.open_sealed)
    token = None
    while token is None:
        token = exchange.take(*post(url, exchange.message))
    return token


def attest(keys, certificate, url):
    for number in range(1, attestation.TRIES + 1):
        try:
            return attempt(keys, certificate, url)
        except attestation.TryAgain as error:
            sys.stderr.write(f"attest: {error}\n")
            if number == attestation.TRIES:
                raise
            time.sleep(attestation.wait_s(number, error.after_s))
    raise AssertionError


def write_authority(path, text):
    """Write a file beside its place and rename it, so that no reader sees a part of it."""
    with open(path + ".new", "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.rename(path + ".new", path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split(";")[0])
    parser.add_argument("--ca", metavar="FILE", help="write the cluster's certificate authority there, if it is given")
    parser.add_argument(
        "--tpm", metavar="ADDRESS", help=f"HOST:PORT or Unix socket of a software TPM, for {tpm.DEVICE}"
    )
    parser.add_argument("--kind", choices=(tpm.RSA, tpm.ECC), default=tpm.RSA, help="of keys (%(default)s)")
    parser.add_argument("url", metavar="URL")
    arguments = parser.parse_args()
    transport = tpm.socket_tpm(arguments.tpm) if arguments.tpm else tpm.device()
    try:
        with transport as run:
            mine = tpm.Tpm(run)
            certificate = mine.certificate(arguments.kind)
            with mine.keys(arguments.kind) as keys:
                token = attest(keys, certificate, attestation.attest_url(arguments.url))
    except attestation.TryAgain:
        return 3
    except (attestation.AttestationFailed, ValueError) as error:
        sys.stderr.write(f"attest: {error}\n")
        return 1
    except (OSError, tpm.TpmError) as error:
        sys.stderr.write(f"attest: {arguments.tpm or tpm.DEVICE}: {error}\n")
        return 2
    if arguments.ca and token.authority:
        write_authority(arguments.ca, token.authority)
    print(token.text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
