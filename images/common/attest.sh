#!/bin/sh
# attest.sh [--ca FILE] [--kind rsa|ecc] URL    proves this machine's TPM (/dev/tpmrm0) to metalman and prints the token.
# It needs python3, which cloud-init brings, and nothing else: no tpm2-tools, no curl. Beside it lie attest.py, aes_gcm.py,
# and tpm.py and attestation.py of packages/unbounded/src/unbounded/join. Exit status: 0 token printed, 1 refused, 2 no TPM, 3 no answer.
exec python3 -E -s -B "$(dirname "$(readlink -f "$0")")/attest.py" "$@"
