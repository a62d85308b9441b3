"""Download of artifacts: images from OCI registries, files by URL, and the unpacking of both.

A download is verified by its digest before any use, and gets its name whole or not at all. Components know the meaning
of an artifact.

- `reference` (`Reference`, `Digest`, `Platform`), `manifest`, `logins`: pure.
- `web` (`Web`): HTTP with retries, redirects and limits; `download`: resumed bodies, and plain URLs with mirrors.
- `registry` (`RegistryClient`): the distribution API on these.
- `archive` reads a layer, `tree` (`Tree`) writes through directory descriptors, `unpack` applies layers in order.
- `store` (`ImageStore`): images by digest on disk, also served while the registry is down; `ImageDir` is its folder.
"""
