"""Puts this folder on the path, so that tests and the processes they start can import the fakes beside it."""

import os

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
