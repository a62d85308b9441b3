"""Images that Machines boot from, cached on disk.

`model` derives the images of a Machine from its spec, has the state of an image, and keeps the images of running boots.
`metadata` reads an image's `metadata.yaml`. `image_controller` pulls and caches images on every replica, with the
logins of pull secrets. `conditions` reports on the Machines, on the leading replica.
"""
