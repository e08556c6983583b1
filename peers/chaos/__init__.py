"""`swarm-peer chaos`: a swarm of processes on an emulated internet, faults at named moments, a report at the end.

Imports neither torch nor hivemind: everything heavy happens in child processes.
"""
