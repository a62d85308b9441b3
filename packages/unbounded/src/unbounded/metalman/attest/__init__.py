"""Attestation: a host proves that it has the TPM of its Machine, and gets a token that only this TPM can open.

- `public` parses keys of TPMs.
- `credential` wraps a secret for a key.
- `chain` verifies endorsement certificates.
- `challenge` makes and checks nonces.
- `messages` is the wire format.
- `trust` decides about a key.
- `service` answers requests.
"""
