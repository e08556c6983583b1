"""The dashboard: a process of its own that follows event logs and shows the run in a browser.

It imports neither torch nor hivemind, and training never waits for it. `process.py` is where to begin to read.
"""
