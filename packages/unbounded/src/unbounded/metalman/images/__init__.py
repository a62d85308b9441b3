"""Images that Machines boot from, cached on disk.

`references` derives the images of a Machine from its spec (pure), `metadata` reads an image's `metadata.yaml`, and
`state` has the state of an image. `pinned` keeps the images of running boots. `image_controller` pulls and caches
images on every replica, with the logins of `pull_secrets`. `conditions` reports on the Machines, on the leading
replica.
"""
