"""A schedule's entry for a group, checked and turned into a call of a Pallas kernel.

    {"mlp": {"kernel": "pallas:swiglu_mlp", "config": {"block_m": 128}}}

`config` gives fields of the kernel's Config; the rest keep their defaults. On xla:cpu the entry
needs `"interpret": true`: Pallas' interpreter is right and very slow, so nobody gets it unasked.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Sequence
from typing import Any

import jax

from tkcc.backends.base import Site, Target
from tkcc.backends.xla import match
from tkcc.backends.xla.kernels.platforms import platform_refusal
from tkcc.backends.xla.match import Fit, NoFit
from tkcc.ir.errors import BackendError
from tkcc.ir.graph import Node

PREFIX = "pallas:"
GENERAL = "xla"
ENTRY_KEYS = ("kernel", "config", "interpret")

# Of a kernel's operands and keywords, those that its `refuses` and `schedules` take.
_CASE: dict[str, tuple[int, tuple[str, ...]]] = {
    "norm_linear": (3, ("transposed",)),
    "swiglu_mlp": (4, ("activation", "transposed")),
    "decode_attention": (3, ("layout",)),
    "flash_attention": (3, ("layout",)),
}


@dataclasses.dataclass(frozen=True)
class KernelCall:
    """A kernel in the place of a node: called with the node's operands, it gives its results."""

    site: Site
    fit: Fit
    config: Any
    interpret: bool

    @property
    def how(self) -> str:
        name = PREFIX + self.fit.kernel
        return f"{name} (interpreted)" if self.interpret else name

    def __call__(self, operands: Sequence[Any]) -> tuple[Any, ...]:
        with jax.named_scope(self.site.label or self.fit.kernel):
            kernel = getattr(_module(self.fit.kernel), self.fit.kernel)
            taken = self.fit.take(operands)
            result = kernel(
                *taken, **self.fit.keywords, config=self.config, interpret=self.interpret
            )
            return self.fit.give(result)

    def source(self, node: Node) -> str:
        """The kernel as a jaxpr, for people."""
        structs = [value.type.struct() for value in match.operands_of(node)]
        text = str(jax.make_jaxpr(lambda *xs: self(xs))(*structs))
        return f"# {self.how} at {self.site}\n# {self.config}\n{text}\n"


def _module(kernel: str) -> Any:
    return importlib.import_module(f"tkcc.backends.xla.kernels.{kernel}")


def kernel_call(node: Node, site: Site, entry: dict[str, Any], target: Target) -> KernelCall:
    """The call that an entry asks for at a node. Raises BackendError saying why it cannot be."""
    name = _kernel_name(entry, site)
    interpret = _interpret(entry, site, name, target)
    try:
        found = match.fit(name, match.body_of(node))
    except NoFit as error:
        raise _refused(site, name, str(error)) from None
    config = _config(name, entry.get("config", {}), site)
    reason = _case_refusal(found, node, config, target)
    if reason is not None:
        raise _refused(site, name, reason)
    return KernelCall(site, found, config, interpret)


def _refused(site: Site, kernel: str, reason: str) -> BackendError:
    return BackendError(
        f"{PREFIX}{kernel} does not fit: {reason}",
        where=f"group {site}",
        remedy="take the entry out of the schedule to use XLA's general path, or change the group",
    )


def _kernel_name(entry: dict[str, Any], site: Site) -> str:
    unknown = sorted(set(entry) - set(ENTRY_KEYS))
    kernel = entry.get("kernel")
    known = [PREFIX + name for name in match.kernels()]
    if unknown or not isinstance(kernel, str) or kernel not in known:
        what = f"unknown keys {unknown}" if unknown else f"kernel {kernel!r} is not known"
        raise BackendError(
            f"schedule entry {entry}: {what}",
            where=f"group {site}",
            remedy=f"an entry has {', '.join(ENTRY_KEYS)}; kernel is one of {', '.join(known)}",
        )
    return kernel.removeprefix(PREFIX)


def _interpret(entry: dict[str, Any], site: Site, kernel: str, target: Target) -> bool:
    interpret = entry.get("interpret", False)
    platform = target.facts["platform"]
    if not isinstance(interpret, bool):
        raise _refused(site, kernel, f"interpret is {interpret!r}, not true or false")
    if platform == "cpu" and not interpret:
        raise _refused(site, kernel, 'on xla:cpu it only runs interpreted: ask "interpret": true')
    if platform != "cpu" and interpret:
        raise _refused(site, kernel, f"interpreting is for xla:cpu, not {target}")
    reason = platform_refusal(target.facts["kernel_platform"])
    if reason is not None:
        raise _refused(site, kernel, reason)
    return interpret


def _config(kernel: str, given: Any, site: Site) -> Any:
    made = _module(kernel).Config
    fields = [field.name for field in dataclasses.fields(made)]
    if not isinstance(given, dict) or not set(given) <= set(fields):
        raise _refused(site, kernel, f"config is {given!r}; it has the fields {', '.join(fields)}")
    defaults = made()
    for name, value in given.items():
        wanted = type(getattr(defaults, name))
        if type(value) is not wanted:
            raise _refused(site, kernel, f"config {name} is {value!r}, not {wanted.__name__}")
    try:
        return made(**given)
    except ValueError as error:
        raise _refused(site, kernel, str(error)) from None


def _case(found: Fit, node: Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Operands (shapes only) and keywords as a kernel's `refuses` and `schedules` take them."""
    count, names = _CASE[found.kernel]
    structs = [value.type.struct() for value in match.operands_of(node)]
    operands = jax.eval_shape(lambda *xs: found.take(xs), *structs)
    return tuple(operands[:count]), {name: found.keywords[name] for name in names}


def _case_refusal(found: Fit, node: Node, config: Any, target: Target) -> str | None:
    operands, keywords = _case(found, node)
    platform = target.facts["kernel_platform"]
    try:
        reason: str | None = _module(found.kernel).refuses(
            *operands, **keywords, config=config, platform=platform
        )
    except ValueError as error:  # shapes that the kernel's own checks refuse
        return str(error)
    return reason


def fitting(node: Node) -> list[Fit]:
    """How each kernel that computes a node (a group, or one op) does so; shapes are not checked."""
    found = []
    for name in match.kernels():
        try:
            found.append(match.fit(name, match.body_of(node)))
        except NoFit:
            continue
    return found


def entries(node: Node, target: Target) -> list[dict[str, Any]]:
    """Schedule entries that `kernel_call` takes for a node on the target, likeliest first."""
    platform = target.facts["kernel_platform"]
    if platform_refusal(platform) is not None:
        return []
    extra = {"interpret": True} if platform == "cpu" else {}
    made = []
    for found in fitting(node):
        operands, keywords = _case(found, node)
        try:
            configs = _module(found.kernel).schedules(*operands, **keywords, platform=platform)
        except ValueError:  # shapes that the kernel's own checks refuse
            continue
        for config in configs:
            made.append(
                {"kernel": PREFIX + found.kernel, "config": dataclasses.asdict(config), **extra}
            )
    return made


def refusals(node: Node, target: Target) -> dict[str, str | None]:
    """Kernel name -> why it cannot take a node on the target with its default Config, or None."""
    site = Site("", ())
    extra = {"interpret": True} if target.facts["platform"] == "cpu" else {}
    found: dict[str, str | None] = {}
    for name in match.kernels():
        try:
            kernel_call(node, site, {"kernel": PREFIX + name, **extra}, target)
            found[PREFIX + name] = None
        except BackendError as error:
            found[PREFIX + name] = error.what
    return found
