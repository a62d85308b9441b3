"""Attestation: a machine proves that it has the TPM of its Machine, and gets a token that only this TPM can open.

`public` reads keys of TPMs, `credential` wraps a secret for one, `chain` checks endorsement certificates, `challenge`
makes nonces, `messages` is what goes over the wire, `trust` decides about a key, `service` answers.
"""
