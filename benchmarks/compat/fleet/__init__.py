"""A user's own package beside the job files."""

from fleet.limits import limit_of, zone_of

__all__ = ["limit_of", "zone_of"]
