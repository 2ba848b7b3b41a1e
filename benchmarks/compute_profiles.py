"""Compute the built-in traffic profiles from the public traces in the folder TKCC_DATA.

    TKCC_DATA=path/to/data python benchmarks/compute_profiles.py

The traces are not part of tkcc. Running this again changes nothing unless the code or a trace did.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tkcc.ir.errors import TkccError
from tkcc.settings import data_folder
from tkcc.traffic.profile import TrafficProfile
from tkcc.traffic.profiles import NAMES
from tkcc.traffic.readers import read_agentic, read_azure, read_mooncake

FOLDER = Path(__file__).parent.parent / "tkcc" / "traffic" / "profiles"
_AZURE = "Azure/AzurePublicDataset b469a113, AzureLLMInferenceTrace_{}_2023 (Splitwise, ISCA 2024)"
# The agentic replay with the most requests of one that the recorded server was not overloaded by.
_CALM_RUN, _CALM_USERS = (8, 8, "off"), 8


def _azure(traces: Path, name: str, which: str) -> TrafficProfile:
    return TrafficProfile.of(
        read_azure(traces / f"azure2023_{which}.csv.gz"),
        name=name,
        source=_AZURE.format("conv" if which == "conv" else "code"),
        licence="CC-BY-4.0",
    )


def _long_conversation(traces: Path) -> TrafficProfile:
    return TrafficProfile.of(
        read_mooncake(traces / "mooncake_conversation.jsonl.gz"),
        name="long-conversation",
        source="kvcache-ai/Mooncake 3b5a5941, FAST25-release/traces/conversation_trace.jsonl",
        licence="Apache-2.0",
    )


def _agentic(traces: Path) -> TrafficProfile:
    path = traces / "agentic_coding_dsr1_b200_replay.csv.gz"
    return TrafficProfile.of(
        read_agentic(path),
        name="agentic-coding",
        source="SemiAnalysisAI/InferenceX e872f86c, agentic replays of DeepSeek-R1 on B200; "
        "lengths and sharing of 387 distinct requests, arrivals and concurrency of one replay "
        "with 8 users",
        licence="Apache-2.0",
        arrivals=read_agentic(path, run=_CALM_RUN),
        users=_CALM_USERS,
    )


def compute(name: str, traces: Path) -> TrafficProfile:
    """The built-in profile `name` from the traces in a folder."""
    made: dict[str, Callable[[], TrafficProfile]] = {
        "chat": lambda: _azure(traces, "chat", "conv"),
        "code": lambda: _azure(traces, "code", "code"),
        "long-conversation": lambda: _long_conversation(traces),
        "agentic-coding": lambda: _agentic(traces),
    }
    return made[name]()


def main() -> None:
    data = data_folder()
    if data is None:
        raise TkccError("there are no traces", remedy="set TKCC_DATA to the folder of test data")
    for name in NAMES:
        profile = compute(name, data / "traces")
        profile.save(FOLDER / f"{name}.json")
        print(profile.summary())


if __name__ == "__main__":
    main()
