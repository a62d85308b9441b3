"""Access to a Kubernetes API, and the runtime of level-triggered controllers.

The package owns the connection to the server, the caches and the reconcile loop. `unbounded.api` owns the meaning of
objects; the components own the decisions.

- `api`: the Protocol `Api` that all code above uses, and the failures of its calls, sorted by who acts next.
- `client` (`HttpApi`) on `object_codec`, `config`, `credentials`, `tls`: `Api` over HTTP.
- `cache` (`Cache`), `controller` (`Controller`, `WorkQueue`): the reconcile loop.
- `status_writer` (`StatusWriter`): the writes of a status.
- `lease` (`LeaderElection`), `events` (`EventRecorder`), `metrics`, `logs` (`Log`, `SecretStr`).
- `process_epoch`: generations of a process; `process`: the frame of each process, its health server, and its end.
- `settings`, `options`: flags; `clock`, `selectors`: small pure helpers; `durable_files`, `tasks`: files and threads.
- `process_tuning`: the garbage collector and the limit of open files.

The event loop's `time()` measures durations, so tests run all of it in virtual time. The wall clock is only displayed.
"""
