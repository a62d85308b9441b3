"""Runs of the install script on hosts, and the way back: processes of their own there, which outlive the connection.

model      what the rest of machina knows of a run
remote     HostInstaller: begins, follows, looks, clears and resets over a Shell
commands   the command lines that are sent; scripts/ holds what they do on the host
payload    what is sent with them: the configuration, the script and its variables
answers    what a host answers, read
refusals   why a host does not do what it is asked, in words
progress   what is told of a run
redact     what a host said, without secrets
"""
