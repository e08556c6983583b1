"""Everything of the network: libp2p, the DHT, handshakes, streams and invites.

hivemind's own `__init__` imports its averaging and optimisers, and with them scipy: a second for each process. Only
`hivemind.p2p`, `hivemind.dht`, `hivemind.proto` and `hivemind.utils` are needed, which use none of it. So the package
is registered, and its `__init__` is not run.
"""

import sys
from importlib.util import find_spec, module_from_spec

if "hivemind" not in sys.modules and (_found := find_spec("hivemind")) is not None:
    sys.modules["hivemind"] = module_from_spec(_found)
