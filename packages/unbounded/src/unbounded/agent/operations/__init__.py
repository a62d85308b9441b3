"""The kinds of MachineOperation that the agent executes: a table and an OperationWork for each."""
