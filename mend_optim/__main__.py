"""`python -m mend_optim` is the command `mend`."""

import sys

from mend_optim.cli.command import main

if __name__ == "__main__":
    sys.exit(main())
