"""The simulator's teeth: protocols that are broken on purpose, each in one rule, each of which it must catch.

`with mutant.planted(): run_seed(…)`. Every mutant undoes one strict rule of docs/protocol.md; what the rule is for is
said next to it.
"""

from swarm.simulation.mutants.commands import COMMANDS
from swarm.simulation.mutants.coordinators import COORDINATORS
from swarm.simulation.mutants.crossing import CROSSING
from swarm.simulation.mutants.membership import MEMBERSHIP
from swarm.simulation.mutants.mutant import Mutant
from swarm.simulation.mutants.reducing import REDUCING
from swarm.simulation.mutants.steps import STEPS

MUTANTS: tuple[Mutant, ...] = (*STEPS, *CROSSING, *REDUCING, *MEMBERSHIP, *COORDINATORS, *COMMANDS)

__all__ = ["MUTANTS", "Mutant"]
