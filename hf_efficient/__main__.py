"""`python -m hf_efficient` is the command `hf-efficient`."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
