"""What people type: `unbounded up` (a whole control plane on one machine), `unbounded lab`, `unbounded version`.

`main` parses and hands over; `settings` is what `up` was told. `up` puts the parts together: the API server, the
definitions (`definitions`), the controllers, and the simulated machines (`lab`). `view` decides what is shown of
Machines and operations, and `screen` shows it, live or line by line.
"""
