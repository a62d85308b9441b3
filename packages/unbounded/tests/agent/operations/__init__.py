"""The kinds of MachineOperation that an agent carries out."""
