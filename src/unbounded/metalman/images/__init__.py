"""The images that Machines boot from, kept on disk.

`wants` says which images a Machine names (pure), `metadata` reads what an image says of itself, `state` is what is
known of one, `begun` is what boots under way keep, `keeper` pulls and holds images on every replica, with logins of
`pull_secrets`, and `conditions` tells of them on the Machines, on the replica that leads.
"""
