"""The simulator's teeth: protocols that are broken on purpose, each in one rule, each of which it must catch.

`with mutant.planted(): run_seed(…)`. Every mutant undoes one strict rule of docs/protocol.md; what the rule is for is
said next to it.
"""

from tests.mutants.commands import COMMANDS
from tests.mutants.coordinators import COORDINATORS
from tests.mutants.crossing import CROSSING
from tests.mutants.membership import MEMBERSHIP
from tests.mutants.mutant import Mutant
from tests.mutants.reducing import REDUCING
from tests.mutants.steps import STEPS

MUTANTS: tuple[Mutant, ...] = (*STEPS, *CROSSING, *REDUCING, *MEMBERSHIP, *COORDINATORS, *COMMANDS)

__all__ = ["MUTANTS", "Mutant"]
