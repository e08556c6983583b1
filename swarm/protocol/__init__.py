"""The pure core: work assignment, the step transaction and its recovery, as sans-IO state machines.

Nothing here opens a socket, reads a clock, draws randomness or uses a tensor. Two drivers run this code: the real one
(peers/stage, peers/coordinator over libp2p) and the deterministic simulator (swarm/simulation).
"""
