"""Tests against engines that no machine has by itself: collected only where the environment says how to start them."""

from __future__ import annotations

import os

collect_ignore = [] if os.environ.get("WARMROUTE_LIVE_VLLM_SERVE") else ["test_vllm.py"]
