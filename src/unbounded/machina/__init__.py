"""The cluster-wide controllers: the steward of MachineOperations, which one process at a time runs.

`controller` puts the steward of `unbounded.operations` together with its caches and Events, `settings` reads flags,
environment and file, `main` is the process.
"""
