"""Runs of the install script and of the reset on hosts, as host processes that outlive the connection.

model      types of a run, for the rest of machina
remote     HostInstaller: begins, follows, observes, clears and resets over a Shell
commands   command lines; scripts/ has the code that runs on the host
payload    upload of a run: the configuration, the script and its variables
answers    parser of the host's answers
refusals   causes why a host rejects a command, as messages
progress   messages about a run
redact     removal of secrets from a host's output
"""
