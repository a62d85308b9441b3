"""Boot files, installer reports and attestation over HTTP.

The port `boot_service.BootService` supplies the files and handles the reports; this package owns the HTTP side.
`requests` parses requests, without a socket. `listener` limits connections, `responses` sends answers within limits,
`file_sender` sends files in a thread of its own with fair scheduling, and `server` receives within limits and connects
everything.
"""
