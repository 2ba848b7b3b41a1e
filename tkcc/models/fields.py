"""Reading a `config.json`: every field is read, known to be without effect, or refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tkcc.models.errors import ModelError

# Fields that do not change what one forward pass computes.
_WITHOUT_EFFECT = {
    *("architectures", "attention_dropout", "chunk_size_feed_forward", "dtype", "torch_dtype"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "id2label", "label2id", "problem_type"),
    *("initializer_range", "is_encoder_decoder", "max_position_embeddings", "pretraining_tp"),
    *("output_attentions", "output_hidden_states", "output_router_logits", "return_dict"),
    *("use_cache", "router_aux_loss_coef", "aux_loss_alpha", "seq_aux", "transformers_version"),
    "model_type",
}
_MOST = 1 << 24  # of anything counted: sizes beyond it come from a damaged file


class Fields:
    """The fields of one config. Each reading method takes a field's names, newest first.

    `refuse_others`, called last, refuses whatever was not read: a field that is ignored gives
    wrong text without any error. All methods raise ModelError, naming the field.
    """

    def __init__(self, values: Mapping[str, Any], model_type: str) -> None:
        self._values, self.model_type = values, model_type
        self._read: set[str] = set()

    def count(
        self, *names: str, default: int | None = None, least: int = 1, most: int = _MOST
    ) -> int:
        """A whole number from `least` to `most`."""
        value = self._get(names, default)
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole or not least <= value <= most:
            allowed = f"a whole number from {least} to {most:,}"
            self.refuse(f"{names[0]} is {value!r}; it must be {allowed}")
        return int(value)

    def number(self, *names: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self._get(names, default)
        real = isinstance(value, int | float) and not isinstance(value, bool)
        if not real or not 0 < value < float("inf"):
            self.refuse(f"{names[0]} is {value!r}; it must be a number above 0")
        return float(value)

    def flag(self, name: str, default: bool | None = None) -> bool:
        """True or false."""
        value = self._get((name,), default)
        if not isinstance(value, bool):
            self.refuse(f"{name} is {value!r}; it must be true or false")
        return bool(value)

    def items(self, name: str, kind: type) -> tuple[Any, ...] | None:
        """A list of `kind`, as a tuple; None if it is not given."""
        self._read.add(name)
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(type(item) is kind for item in value):
            self.refuse(f"{name} must be a list of {kind.__name__}")
        return tuple(value)

    def table(self, name: str) -> Mapping[str, Any]:
        """A nested object; empty if it is not given."""
        self._read.add(name)
        value = self._values.get(name) or {}
        if not isinstance(value, dict):
            self.refuse(f"{name} is {value!r}; it must be an object")
        return dict(value)

    def given(self, name: str) -> bool:
        """Whether the field is there and not null."""
        self._read.add(name)
        return self._values.get(name) is not None

    def only(self, name: str, *allowed: Any) -> None:
        """The field, where it is given, must have one of these values."""
        self._read.add(name)
        if name in self._values and self._values[name] not in allowed:
            known = " or ".join(map(repr, allowed))
            self.refuse(
                f"config field {name!r} is {self._values[name]!r}; only {known} is implemented"
            )

    def without_effect(self, *names: str) -> None:
        """These fields change nothing in this family."""
        self._read.update(names)

    def refuse_others(self) -> None:
        """Every field that was not read, unless it is null, false, zero or empty."""
        notes = {name for name in self._values if name.startswith(("_", "transformers."))}
        unread = set(self._values) - self._read - _WITHOUT_EFFECT - notes
        names = sorted(name for name in unread if self._values[name])
        if "quantization_config" in names:
            self.refuse(
                "config field not implemented: quantization_config",
                "give a checkpoint without quantisation; for shapes alone, remove that field",
            )
        if names:
            self.refuse(f"config field not implemented: {', '.join(names)}")

    def refuse(self, what: str, remedy: str = "") -> None:
        """Raise the error about this config."""
        add = "use a checkpoint that tkcc implements, or add to the family (docs/add-a-model.md)"
        raise ModelError(what, where=f"{self.model_type} config", remedy=remedy or add)

    def _get(self, names: tuple[str, ...], default: Any) -> Any:
        self._read.update(names)
        found = {name: self._values[name] for name in names if self._values.get(name) is not None}
        values = list(found.values()) or [default]
        if any(value != values[0] for value in values):
            self.refuse(f"the fields {', '.join(found)} mean the same and differ")
        if values[0] is None:
            self.refuse(f"the config has no {names[0]!r}")
        return values[0]
