"""Observing a run: its events, state and archive, as its coordinators show them to whoever has an observer's pass."""
