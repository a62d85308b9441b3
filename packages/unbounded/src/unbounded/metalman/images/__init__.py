"""Images that Machines boot from, cached on disk.

`model` derives the images of a Machine from its spec and has the state of an image, and `metadata` reads an image's
`metadata.yaml`. `pinned` keeps the images of running boots. `image_controller` pulls and caches
images on every replica, with the logins of `pull_secrets`. `conditions` reports on the Machines, on the leading
replica.
"""
