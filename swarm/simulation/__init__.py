"""A deterministic simulator of the protocol, with a virtual clock, a faulty network, and processes that crash and
stall.

It runs the same cores as the real programs (swarm/protocol) on a toy model with integers instead of tensors, checks the
invariants of docs/protocol.md after every event, and replays any seed exactly. Run it with `swarm-peer simulate`.
"""
