"""Long-running procedures: the parts of an engine that know no resource.

`procedure` defines a state machine of stages and facts, and `planner` decides its next step as a pure function.
`run_record` has the part of a run that survives a crash, with the known state of the last call; `run_state` has the
times and answers of one process. `call_retries` has the condition for a retry. `concurrency` limits concurrent runs.
`unbounded.operations` runs MachineOperations with them; it owns locks, claims and status writes.
"""
