"""`python -m tkcc`."""

import sys

from tkcc.cli import main

sys.exit(main())
