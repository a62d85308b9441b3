"""Virtual media: an ISO image for one boot of one Machine, which a BMC shows its host as a CD drive.

`image` lays out the ISO image, and `fat` the EFI system partition in it. Both are pure: an image is a list of parts,
most of which are the files of a netboot image as they lie on disk. `server` streams these parts by HTTPS to the BMC
that a ticket in the URL (`tickets`) permits to read them.
"""
