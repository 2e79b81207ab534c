"""The paper's experiment as a command: does one run really take less energy than another?

    python scripts/measure_energy.py full=configs/a.yaml,heuristic=none half=configs/a.yaml,top_k=32 -n 6

The same as `hf-efficient energy`; --help lists the options.
"""

import sys

from hf_efficient.cli import run
from hf_efficient.cli.energy import main

if __name__ == "__main__":
    sys.exit(run(main, sys.argv[1:]))
