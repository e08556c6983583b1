"""Observing a run: fetches its events, state and archive from the coordinators, with an observer's pass."""
