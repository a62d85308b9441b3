"""Boot files, installer reports and attestation over HTTP.

The port `ports.Boots` supplies the files and handles the reports; this package owns the HTTP side. `asked`,
`forwarded`, `conditions` and `reports` parse requests. `turns` schedules transfers, and `pace` detects slow clients.
None of these opens a socket. `door` limits connections, `pump` sends files in a thread of its own, `sending` and
`bodies` send and receive within limits, and `server` connects everything.
"""
