"""Readers of traces and logs. Their files are untrusted: bounded, checked, never executed."""

from __future__ import annotations

from tkcc.traffic.readers.agentic import read_agentic
from tkcc.traffic.readers.azure import read_azure
from tkcc.traffic.readers.mooncake import read_mooncake
from tkcc.traffic.readers.openai_log import read_openai_log
from tkcc.traffic.readers.servegen import ClientRates, read_servegen

__all__ = [
    "ClientRates",
    "read_agentic",
    "read_azure",
    "read_mooncake",
    "read_openai_log",
    "read_servegen",
]
