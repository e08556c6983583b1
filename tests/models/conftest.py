"""Lets the tests of this folder import `whole_model`."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
