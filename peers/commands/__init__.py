"""The commands of `swarm-peer`.

To add one: write `peers/commands/<name>.py` with a function `command` (typer annotations, see `peers/options.py`), and
add its row here. The module is imported only when the command runs or its own help is shown. Import torch and hivemind
inside the function. Errors that users can fix are ValueErrors of this program's own classes, or OSErrors about a path:
they are printed in one line, with exit code 2.
"""

COMMANDS: dict[str, str] = {
    "demo": "Run a whole swarm on this machine: train, kill one peer, check the result.",
    "coordinate": "Host a run: send it data, decide its steps, archive its checkpoints.",
    "invite": "Make a pass for a person, and print the command with which they join.",
    "invites": "List the passes of a run, and how many have joined with each.",
    "revoke": "Make a pass invalid: its devices must leave the run.",
    "join": "Take part in a run with this machine.",
    "reference": "Train the same run in one process, and compare with the swarm.",
    "init": "Write a commented RUN.toml for a new run.",
    "import": "Make a run that begins with a pretrained model.",
    "prepare": "Turn text into a tokenizer and hashed token shards.",
    "control": "Steer a run: pause it, move its end, dismiss a peer.",
    "status": "Show the state of a peer or coordinator, from its home.",
    "dashboard": "Show a run in the browser, live or afterwards.",
    "report": "Write a run as one HTML file.",
    "events": "Read or follow an event log.",
    "export": "Write a trained model as files that other programs read.",
    "generate": "Continue a text with a trained model.",
    "id": "Print the peer id of a home, for the coordinators of a run.",
    "bootstrap": "Run a node with a permanent address, through which others find the run.",
    "chaos": "Play a scenario: run a swarm on an emulated internet with faults, and report.",
    "simulate": "Run the protocol under seeded faults, in virtual time.",
}

LASTING = frozenset({"coordinate", "join", "bootstrap"})
"""Commands whose work continues even if nothing reads their output."""
