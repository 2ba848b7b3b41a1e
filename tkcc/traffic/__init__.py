"""Traffic: traces and logs read, profiles of them, traffic made from profiles, replays measured."""

from __future__ import annotations

from tkcc.traffic.generate import GeneratedRequest, generate
from tkcc.traffic.metrics import Report
from tkcc.traffic.profile import TrafficProfile
from tkcc.traffic.profiles import built_in, built_in_names
from tkcc.traffic.records import TrafficRequest
from tkcc.traffic.replay import replay

__all__ = [
    "GeneratedRequest",
    "Report",
    "TrafficProfile",
    "TrafficRequest",
    "built_in",
    "built_in_names",
    "generate",
    "replay",
]
