"""The command line: `unbounded up` (a whole control plane on one machine), `unbounded lab`, `unbounded version`.

- `main` parses the command and dispatches it; `settings` has the flags of `up`.
- `up` assembles the API server, the definitions (`manifests`), the controllers and the simulated machines (`lab`).
- `view` turns Machines and operations into rows; `screen` shows the rows, live or line by line.
"""
