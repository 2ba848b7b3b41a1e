"""Rewriting: rules as data, a matcher with a bounded cost, and the driver that applies rules."""
