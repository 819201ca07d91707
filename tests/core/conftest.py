"""Assertions in the shared helpers explain themselves as those in tests do."""

import pytest

pytest.register_assert_rewrite("protections", "placements")
