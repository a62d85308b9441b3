"""Certification of a BMC: run what metalman asks of BMCs against one, and grade the answers.

- `grades` has the table of checks that each use of a BMC needs, and the rules of the grades. Pure.
- `checks` runs the checks with metalman's own client, on the connection of `connection`.
- `connection` records the answers, and `redaction` replaces what identifies a machine.
- `certify` makes the report for people, and the profile, which is the file that the lab's BMC replays.

It changes nothing unless the caller allows writes, and never the power. The command line owns flags and exit statuses.
"""
