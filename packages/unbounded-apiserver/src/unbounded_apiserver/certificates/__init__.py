"""CertificateSigningRequests: their kind, the parsing of their content, and the signers.

`access/` decides on the rights to approve and sign; `controllers/certificates.py` signs, and deletes old requests.
"""
