"""The history of a run: its logs followed, folded, and kept in a database that can be deleted at any time.

The logs are the truth. The database makes them quick to query: rows of steps and faults, the places of lines in the
logs, and snapshots of the state. It is made anew from the logs whenever it is missing or does not fit them.
"""
