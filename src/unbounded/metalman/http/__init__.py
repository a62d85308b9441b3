"""Boot files, installer reports and attestation over HTTP.

What is served, and what a report means, comes through `ports.Boots`; this package knows how it is asked for. `asked`,
`forwarded`, `conditions` and `reports` read requests, `turns` and `pace` say who is sent something next and who is too
slow: all without a socket. `door` lets connections in, `pump` sends files in a thread of its own, `sending` and
`bodies` are what goes out and comes in within limits, and `server` puts it together.
"""
