"""Launching: other `swarm-peer` processes on this machine, for the demo, `swarm-peer chaos`, the benchmarks and tests.

A launcher starts them, each with an output file of its own: `Cold` as new programs, `Nursery` as forks of a process
that has imported everything. `nursery_or_cold` picks. All of them die with the process that started them.
"""
