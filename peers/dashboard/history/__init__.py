"""The history of a run: its logs followed, folded, and kept in a database that can be deleted at any time.

The logs are the truth. The database holds what makes them quick to ask: rows of steps and faults, where in which log a
line stands, and snapshots of the state. It is made anew from the logs whenever it is missing or does not fit them.
"""
