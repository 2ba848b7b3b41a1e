"""The persistent engine: requests, scheduling, paged caches, programs, steps."""
