"""Boot files, installer reports and attestation over HTTP.

The port `ports.BootService` supplies the files and handles the reports; this package owns the HTTP side. `requests` and
`conditions` parse requests. `fair_queue` schedules transfers, and `rate_check` detects slow clients. None of these
opens a socket. `listener` limits connections, `file_sender` sends files in a thread of its own, `sending` sends within
limits, and `server` receives within limits and connects everything.
"""
