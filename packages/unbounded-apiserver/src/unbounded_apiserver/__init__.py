"""The embedded API server: a small, strict server of the Kubernetes API for one machine.

It owns a data directory (SQLite, its own certificate authority) and serves built-in kinds and custom resources to
plain kubectl, public clients and our controllers. What it does not serve is absent from discovery. `ApiServer` in
`server.py` is the way in; `server_core.py` is the same without HTTP.
"""
