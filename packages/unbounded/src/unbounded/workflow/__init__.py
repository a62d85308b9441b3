"""Long-running procedures: the parts of an engine that know no resource.

`procedure` defines a state machine of stages and facts, and `planner` decides its next step as a pure function.
`call_state` has the known state of the last call, `call_retries` the condition for its retry, `record` the part that
survives a crash, and `run_state` the times and answers of one process. `concurrency` limits concurrent runs.
`unbounded.operations` runs MachineOperations with them; it owns locks, claims and status writes.
"""
