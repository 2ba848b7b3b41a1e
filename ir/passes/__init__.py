"""Passes: functions from module to module (or function to function)."""
