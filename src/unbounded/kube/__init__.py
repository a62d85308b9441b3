"""Speaking to a Kubernetes API, and the runtime of level-triggered controllers.

It owns the way to the server and the time in between: what an object means is for `unbounded.api`, what to do about it
for the components.

- `port`: the Protocol `Api` that everything above asks for; `errors`: what can come of a call, sorted by who acts next.
- `client` (`HttpApi`) on `wire`, `config`, `credentials`, `tls`: the port over HTTP.
- `cache` (`Cache`), `workqueue` (`WorkQueue`), `controller` (`Controller`), `backoff`: the loop.
- `lease` (`LeaderElection`), `events` (`EventRecorder`), `metrics`, `health`, `logs` (`Log`, `SecretStr`).
- `selectors`, `objects`, `clock`: small pure things; `durable`, `threads`, `gather`, `shutdown`: ends of work.
- `gc_tuning`: the garbage collector.

Durations are measured by the event loop's `time()`, so all of it runs in virtual time; the wall clock is only shown.
"""
