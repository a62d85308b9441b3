"""Getting artifacts: images from OCI registries, files by URL, and unpacking what came.

What is fetched is checked by its digest before anybody sees it, and lands under its name whole or not at all. What an
artifact means is for the components.

- `reference` (`Reference`), `platforms` (`Platform`), `digests` (`Digest`), `manifest`, `logins`, `challenge`: pure.
- `web` (`Web`), `transfer`: HTTP with retries, redirects, resumption and limits; `partial`: the file that grows.
- `registry` (`Registry`): the distribution API on these; `download` (`download`): plain URLs with mirrors.
- `archive` reads a layer, `tree` (`Tree`) writes through directory descriptors, `unpack` puts layers on each other.
- `store` (`ImageStore`): images by digest on disk, for when the registry is down; `shelf` is its folder.
"""
