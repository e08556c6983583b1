"""Starts other `swarm-peer` processes on this machine, for the demo, `swarm-peer chaos`, the benchmarks and tests.

A launcher gives each process its own output file. `Cold` starts new programs; `Nursery` forks a process that has
already imported everything. `nursery_or_cold` chooses. All started processes die with the process that started them.
"""
