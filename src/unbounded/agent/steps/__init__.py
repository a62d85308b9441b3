"""What start does to a host, as lists of steps: each knows whether it is done, how to do it, and how to undo it."""
