"""Network boot of Machines: the boots that are due, their files, and the progress that the servers observe.

Pure modules:

- `boot_requests` derives the requested boots and their windows from Machines and operations.
- `boot_index` indexes Machines and boots by MAC, address and prefix.
- `files` maps a path to a file of an image and to the clients that may have it.
- `duplicate_host` detects a second host that takes part in a boot.
- `milestones` turns observations into a patch of the Machine's status.
- `prefix` derives the unguessable part of a boot's URLs.

Around these, `index_updater` keeps the index equal to the API, `boot_progress` takes the events of the servers, and
`status_writer` writes them into the status. `finding_reporter` reports problems, `reservation_source` answers the DHCP
server, and `site` connects everything with HTTP and TFTP. Addresses, sockets and headers belong to the servers in
`dhcp`, `tftp` and `http`. The executor of a HostReplace lives elsewhere and reads the status that this package writes.
"""
