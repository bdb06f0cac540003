"""`python -m fastvideo_core.cli` is the `fastvideo` command."""

from __future__ import annotations

import sys

from fastvideo_core.cli.main import main

sys.exit(main())
