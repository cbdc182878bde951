"""One file per question. Idle OpenMP threads must sleep, or they would count as work."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
