"""The lifecycle of a MachineOperation, implemented once for every executor.

`executor_selection` maps an operation to its executor. `unbounded.workflow` has the state machines and decides the next
step; `execution_record` stores in the status what has to survive a crash. `claim_gates` lists the conditions of a
claim; `executor_claim` adds those that need a live read. `executor_engine` is the executor's loop around them, behind
`executor_protocol`. `supervisor` writes before a claim and for lost executors. It validates, explains waiting, fans
selectors out, reaps and cleans up.
"""
