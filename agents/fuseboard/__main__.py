"""``python -m fuseboard``, where the script is not on the path."""

import sys

from fuseboard.cli import main

sys.exit(main())
