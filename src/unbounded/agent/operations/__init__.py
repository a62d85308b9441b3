"""The kinds of MachineOperation that the agent executes: a table and a Work for each."""
