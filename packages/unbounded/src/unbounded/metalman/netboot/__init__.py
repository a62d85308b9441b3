"""Network boot of Machines: the boots that are due, their files, and the progress that the servers observe.

Pure modules:

- `boot_requests` derives the requested boots, their windows, and the unguessable part of their URLs.
- `boot_index` indexes Machines and boots by MAC, address and prefix, and answers the DHCP server.
- `duplicate_host` detects a second host that takes part in a boot.
- `image_paths` maps a path to a file of an image and to the clients that may have it.

Around these, `index_updater` keeps the index equal to the API, `boot_progress` takes the events of the servers and
reports problems, and `status_writer` writes the progress into the status. `template_data` reads the cluster's data for
boot files, and `request_handler` connects everything with HTTP and TFTP. Addresses, sockets and headers belong to the
servers in `dhcp`, `tftp` and `http`; `servers` starts them, and `process` all of network boot. The executor of a
HostReplace lives elsewhere and reads the status that this package writes.
"""
