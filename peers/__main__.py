"""`python -m peers`: the same as `swarm-peer`."""

from peers.entry import main

main()
