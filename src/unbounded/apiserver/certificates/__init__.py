"""CertificateSigningRequests: their kind, the parsing of their content, and the signers.

`access/` decides on the rights to approve and sign; `housekeeping/certificates.py` signs, and deletes old requests.
"""
