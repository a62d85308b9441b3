"""The agent's own binary: two slots, blue and green, and the way from one to the other and back.

A release is on trial as long as the link `current` differs from `last-good`. That is the whole of what the recovery
unit has to know, so that it needs neither the new program nor Python: whatever happens, it points `current` back.

    releases    the slots and the links
    tarball     what a release may look like, and unpacking it
    trial       what is on trial, on disk; what failed on this host
    units       the daemon's unit, and what brings the last good version back
    health      what the daemon does about a trial when it starts, and while it lasts
    procedure   AgentUpgrade as a table
"""
