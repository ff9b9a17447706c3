"""``python -m flashcute`` is the ``flashcute`` command."""

import sys

from flashcute.cli import main

sys.exit(main())
