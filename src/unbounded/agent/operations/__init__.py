"""The kinds of MachineOperation that the agent carries out: a table and a Work for each."""
