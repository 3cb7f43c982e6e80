"""`python -m phaseline`."""

import sys

from phaseline.cli.main import main

sys.exit(main())
