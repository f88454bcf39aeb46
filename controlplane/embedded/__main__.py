import sys

from controlplane.embedded.keeper import main

sys.exit(main())
