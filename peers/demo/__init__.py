"""The demo: a whole swarm on this machine, one of its peers killed, its result checked. Imports neither torch nor
hivemind: everything heavy happens in child processes.
"""
