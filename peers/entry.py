"""The entry point of `swarm-peer`. It handles signals before it imports the command line, which takes a tenth of a
second: otherwise Ctrl-C in this time would print a traceback.
"""

from peers.runtime.signals import INTERRUPTED, ends_when_asked


def main() -> None:
    """Run the command line and raise SystemExit with its exit code."""
    try:
        with ends_when_asked():
            from peers.cli import main as command_line

            command_line()
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
