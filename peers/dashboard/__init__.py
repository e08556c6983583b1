"""The dashboard: a separate process that follows event logs and shows the run in a browser.

It imports neither torch nor hivemind, and training never waits for it. Start reading at `process.py`.
"""
