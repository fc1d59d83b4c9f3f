"""`python -m envgym.cli`."""

import sys

from envgym.cli.command import main

sys.exit(main())
