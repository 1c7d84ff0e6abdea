"""`python -m serve_apps.cli` is `mmserve`."""

import sys

from serve_apps.cli import main

sys.exit(main())
