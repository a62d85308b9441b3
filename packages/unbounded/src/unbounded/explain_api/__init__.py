"""HTTP API of explanations and plans, for programs without the plugin: consoles, chat bots, dashboards.

The API has no rights and no cache of its own. Each request opens a client with the caller's credentials, and reads with
that one alone. What the caller may not read is left out, and the answer says so. It writes nothing, reads no Secret and
calls no cloud.

`service` routes and answers requests without a server. `unbounded up` serves it on the port of its API server;
`server` and `main` are the process `unbounded-explain` on a cluster. `client` asks either of them.
"""
