"""`kubectl unbounded …`: what every command shares, from what was typed to what is printed.

`command` is the shape of a command; each file of `cli/commands` has rows of it. `parsing` finds the row that was typed
and reads its arguments, `main` runs it. `target` opens the API, `output` prints, `errors` says what to do next,
`confirm` asks, `operations` carries an intent out, `waiting` follows it, `liveview` shows that on a terminal.
"""
