"""CertificateSigningRequests: their kind, what is asked for in them, and which signer signs what.

Who may approve and sign is said in `access/`; `housekeeping/certificates.py` signs, and removes old requests.
"""
