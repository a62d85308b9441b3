"""Changes of start to a host, as lists of steps. Each step can observe, make and undo its change."""
