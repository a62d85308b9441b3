"""`kubectl unbounded …`: the parts that all commands share, from parsing to output.

- `command` is the form of a command; each file of `cli/command_tables` has rows of it.
- `parsing` finds the row of a command line and parses its arguments; `main` runs it.
- `target` opens the API, `output` prints, `errors` adds the next step.
- `intents` confirms and executes an intent, `wait` follows the operation, `liveview` shows that on a terminal.
"""
