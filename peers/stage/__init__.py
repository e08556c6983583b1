"""A volunteer's peer: connects the protocol, the computation and the network."""
