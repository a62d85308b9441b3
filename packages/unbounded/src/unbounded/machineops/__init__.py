"""Host operations on cloud VMs. `provider` is the port that a cloud implements."""
