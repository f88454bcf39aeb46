"""Every experiment of ``make experiments``. The page of the documentation stays as it is."""

import sys

from tools.experiments.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["--print"]))
