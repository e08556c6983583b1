"""The history of a run: its logs are followed, folded, and kept in a database that can be deleted at any time.

The logs are the authoritative source. The database makes them quick to query: it has rows of steps and faults, the
positions of lines in the logs, and snapshots of the state. It is made again from the logs whenever it is missing or
does not fit them.
"""
