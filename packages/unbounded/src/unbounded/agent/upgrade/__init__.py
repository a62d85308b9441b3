"""Releases of the agent's own binary: two slots, blue and green, with upgrade and rollback between them.

A release is on trial while the link `current` differs from `last-good`. The recovery unit needs no other state, and so
neither the new program nor Python: in every case, it points `current` back to `last-good`.

    releases    the slots and the links
    tarball     permitted content of a release's archive, and its unpacking
    trial       records on disk: the release on trial, and releases that failed on this host
    units       the daemon's unit, and the units that roll back to the last good release
    health      the daemon's part of a trial, at its start and while the trial lasts
    procedure   AgentUpgrade as a table
"""
