"""Attestation: a host proves that it has the TPM of its Machine, and gets a token that only this TPM can open.

- `tpm` parses keys of TPMs, and wraps a secret for a key.
- `challenge` is the wire format, and makes and checks nonces.
- `quote` verifies quotes of PCRs, and compares a boot with the reference.
- `trust` decides about a key, and verifies endorsement certificates.
- `service` answers requests.
"""
