"""The core of the protocol: it assigns work, decides steps and recovers from failures, as state machines without I/O.

No code here opens a socket, reads a clock, draws random numbers or uses a tensor. Two drivers run this code: the real
one (peers/stage and peers/coordinator, over libp2p) and the deterministic simulator (swarm/simulation).

Words used in this package: an *actor* is one process of a peer or coordinator. A *pass* is one attempt to send the
microbatches of a step through all stages. A *table* says which replica of a stage computes which microbatch. *Siblings*
are the other replicas of a stage. docs/protocol.md explains the rules.
"""
