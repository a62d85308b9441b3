"""Installation on a cluster, and registration of Machines: `install`, `site`, `machine register`, `config`.

- `workloads` describes the objects of a cluster, and `machine_manifests` the Machine that flags describe.
  They are pure, so that `deploy/` is generated from the same tables.
- `server_side_apply` applies objects to a server.
- `components` reads whether `unbounded up` already runs the controllers.
"""
