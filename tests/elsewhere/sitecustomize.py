"""What Python runs at its start where this is on its path."""

from __future__ import annotations

import elsewhere as elsewhere
