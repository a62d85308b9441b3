"""Go's package fmt over typed values: `sprint`, `sprintln`, `sprintf`."""

from unbounded.metalman.templates.fmt.printing import sprint, sprintf, sprintln

__all__ = ["sprint", "sprintf", "sprintln"]
