"""Which Machine boots from the network, what it gets, and what was seen of it.

Pure: `wanted` says which boots are wanted and what they may have, `roll` finds them by MAC, address and prefix, `files`
says which file a path means and who may have it, `contest` notices a second host on one boot, and `milestones` turns
what was seen into the Machine's status. `prefix` makes the part of a boot's URLs that cannot be guessed.

Around that: `follower` keeps the roll equal to the API, `sightings` takes what the servers see, `writer` writes it,
`findings` tells of trouble, `book` is what DHCP asks, and `site` ties it together for HTTP and TFTP. Addresses, sockets
and headers are of the servers in `dhcp`, `tftp` and `http`; a HostReplace is carried out elsewhere and reads what is
written here.
"""
