"""The life of a MachineOperation, written once for every executor.

`ownership` says who carries an operation out. `procedure` is the shape of a kind's state machine, `plan` decides
its next step, `record` keeps what has to survive a crash in the operation's status; `gates` says what holds a claim
back, and `admission` adds what only a live read can tell. `engine` is the executor's loop around them, behind the small
port of `ports`. `steward` writes before a claim and for whatever has no living executor: it validates, explains
waiting, fans selectors out, reaps and cleans up.
"""
