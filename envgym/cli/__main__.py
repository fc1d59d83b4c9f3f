"""`python -m envgym.cli`."""

import sys

from envgym.cli.main import main

sys.exit(main())
