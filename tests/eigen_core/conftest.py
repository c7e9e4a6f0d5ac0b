"""The obvious implementation of an episode judges more than its own folder."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent / "trading"))
