"""Write smollm2_135m.json: what transformers generates from the same GGUF file.

Run from the repository root, where torch and transformers are installed:

    python tests/models/golden/make_golden.py

The file lets the equality test run where they are not. `margin` is the smallest gap between the
best and the second logit over the tokens of a prompt: a float32 implementation whose logits are
closer than half of it must produce the same tokens.
"""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import torch
import transformers

from tkcc.models import registry
from tkcc.models.prompts import prompt

NAMES = ("question", "rewrite", "code", "data")
NEW_TOKENS = 64
GOLDEN = Path(__file__).with_name("smollm2_135m.json")


def reference(path: Path) -> Any:
    """transformers' own LlamaForCausalLM from a GGUF file, float32."""
    load = transformers.AutoModelForCausalLM.from_pretrained
    return load(path.parent, gguf_file=path.name, dtype=torch.float32).eval()


def continuation(model: Any, tokens: list[int], new_tokens: int) -> tuple[list[int], torch.Tensor]:
    """Greedy tokens and their logits [new_tokens, V]; end-of-text does not stop it."""
    with torch.no_grad():
        out = model.generate(
            torch.tensor([tokens]),
            max_new_tokens=new_tokens,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
    return out.sequences[0, len(tokens) :].tolist(), torch.stack(out.logits)[:, 0]


def main() -> None:
    loaded = registry.load("smollm2-135m")
    model = reference(Path(loaded.source))
    prompts = {}
    for name in NAMES:
        tokens = prompt(name).tokens(loaded.tokenizer)
        new, logits = continuation(model, tokens, NEW_TOKENS)
        best = logits.topk(2).values
        margin = float((best[:, 0] - best[:, 1]).min())
        prompts[name] = {"tokens": tokens, "continuation": new, "margin": round(margin, 5)}
    versions = {
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    GOLDEN.write_text(json.dumps({"versions": versions, "prompts": prompts}) + "\n")


if __name__ == "__main__":
    main()
