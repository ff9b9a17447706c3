"""The libraries that can be measured, found among what is installed. Each says what it cannot do."""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import flashcute
from flashcute.bench.clocks import Call, Contestant
from flashcute.bench.problems import Inputs
from flashcute.cli.problem import longest

_LONGEST_QUOTE = 140
_TENSOR_NAMES = {"dense_mask": "pair mask", "block_mask": "block mask", "mask": "key mask", "alibi_slopes": "ALiBi"}


class CannotDoError(Exception):
    """One clause on why a library cannot do a problem: in our words, or quoted from the library."""


@dataclass(frozen=True)
class Entry:
    """A library, ready for one problem."""

    contestant: Contestant
    result: Callable[[], Tensor]  # of one more call, in the axes of `Inputs.out`
    kernel: str = ""


@dataclass(frozen=True)
class Library:
    name: str
    find: Callable[[], str]  # its version; raises ImportError
    prepare: Callable[[Inputs], Entry]  # raises CannotDoError
    package: str = ""  # that pip installs it from


def _entry(
    call: Callable[[], Any], axes: Callable[[Tensor], Tensor] = lambda out: out, before: Call | None = None
) -> Entry:
    def result() -> Tensor:
        if before is not None:
            before()
        out = call()
        return axes(out[0] if isinstance(out, tuple) else out)

    return Entry(Contestant(call) if before is None else Contestant(call, before), result)


def _require(
    inputs: Inputs, *, packed: bool = False, options: tuple[str, ...] = (), tensors: tuple[str, ...] = ()
) -> None:
    """Raises unless the library, which has these features beside full and causal attention, can do the problem."""
    case = inputs.problem.case
    if case.packed != packed:
        raise CannotDoError("no packed lengths" if case.packed else "nothing but packed lengths")
    if case.options.get("causal") and not packed and case.seq[0] != case.seq[1]:
        raise CannotDoError("no causal mask with unequal lengths")
    for name in case.options:
        if name not in ("causal", "layout", *options):
            raise CannotDoError(f"no {name.removesuffix('_p')}")
    for name in case.tensors:
        if name not in ("cu_seqlens", *tensors):
            raise CannotDoError(f"no {_TENSOR_NAMES.get(name, name)}")


# ---------------------------------------------------------------------------------------------------------------------
# flashcute


def _flashcute(inputs: Inputs, backend: str = "auto") -> Entry:
    case, out = inputs.problem.case, inputs.out
    qkv = (inputs.q, inputs.k, inputs.v)
    try:
        descriptor = flashcute.AttentionDescriptor(
            *qkv, out=out, backend=backend, **case.options, **inputs.tensors, **longest(inputs.lengths)
        )
    except flashcute.NotImplementedByKernelError as error:
        raise CannotDoError(str(error)) from None
    seed = {name: value for name, value in case.options.items() if name == "seed"}
    workspace = torch.empty(max(descriptor.workspace_size, 1), device=out.device, dtype=torch.uint8)

    def call() -> object:
        return descriptor.run(*qkv, out=out, workspace=workspace, **inputs.tensors, **seed)

    def result() -> Tensor:
        call()
        return out

    return Entry(Contestant(call), result, str(descriptor.plan["kernel"]))


# ---------------------------------------------------------------------------------------------------------------------
# PyTorch


def _torch_version() -> str:
    return str(torch.__version__)


def _only(backend: str) -> Call:
    """Lets scaled_dot_product_attention use this backend alone. Outside of the clock: a context manager costs 10 µs."""
    setters = {
        "flash": torch.backends.cuda.enable_flash_sdp,
        "cudnn": torch.backends.cuda.enable_cudnn_sdp,
        "efficient": torch.backends.cuda.enable_mem_efficient_sdp,
        "math": torch.backends.cuda.enable_math_sdp,
    }

    def choose() -> None:
        for name, enable in setters.items():
            enable(backend in (name, "any"))

    return choose


def _sdpa(backend: str, tensors: tuple[str, ...]) -> Callable[[Inputs], Entry]:
    before = None if backend == "cpu" else _only(backend)

    def prepare(inputs: Inputs) -> Entry:
        _require(inputs, tensors=tensors)
        case = inputs.problem.case
        grouped: dict[str, Any] = {"enable_gqa": True} if case.heads[0] != case.heads[1] else {}
        mask = inputs.tensors.get("bias", inputs.tensors.get("mask"))
        if mask is not None and mask.ndim == 2:
            mask = mask[:, None, None, :]
        causal = bool(case.options.get("causal"))

        def call() -> Tensor:
            return scaled_dot_product_attention(
                inputs.q, inputs.k, inputs.v, attn_mask=mask, is_causal=causal, **grouped
            )

        return _tried(_entry(call, before=before))

    return prepare


def _tried(entry: Entry) -> Entry:
    try:
        entry.result()
    except (RuntimeError, TypeError, ValueError, AssertionError, NotImplementedError) as error:
        raise CannotDoError(f"says “{in_short(error)}”") from None
    return entry


def in_short(error: Exception) -> str:
    """The first sentence of what a library complains of, without the C++ function, file and line it may begin with."""
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    first = re.sub(r"^.*?\.(?:cpp|cc|cu|cuh|hpp|h|py):\d+[,:]? +", "", first)
    sentence = re.split(r"(?<=[.!?])\s", first)[0]
    return textwrap.shorten(sentence, _LONGEST_QUOTE, placeholder=" …").rstrip(".")


def _sdpa_of_members(inputs: Inputs) -> Entry:
    """The CPU has no packed attention in PyTorch: one call for each member."""
    _require(inputs, packed=True)
    case, bounds = inputs.problem.case, inputs.lengths["cu_seqlens_q"]
    causal = bool(case.options.get("causal"))
    grouped: dict[str, Any] = {"enable_gqa": True} if case.heads[0] != case.heads[1] else {}
    out = torch.empty_like(inputs.out)
    parts = [slice(int(a), int(b)) for a, b in itertools.pairwise(bounds)]
    members = [tuple(x[own].transpose(0, 1)[None] for x in (inputs.q, inputs.k, inputs.v)) for own in parts]

    def call() -> Tensor:
        for own, (q, k, v) in zip(parts, members, strict=True):
            out[own] = scaled_dot_product_attention(q, k, v, is_causal=causal, **grouped)[0].transpose(0, 1)
        return out

    return _entry(call)


def _sdpa_cpu(inputs: Inputs) -> Entry:
    if inputs.problem.case.packed:
        return _sdpa_of_members(inputs)
    return _sdpa("cpu", ("mask", "dense_mask", "bias"))(inputs)


def _sdpa_fa2(inputs: Inputs) -> Entry:
    if not inputs.problem.case.packed:
        return _sdpa("flash", ())(inputs)
    _require(inputs, packed=True)
    try:
        varlen = importlib.import_module("torch.nn.attention.varlen").varlen_attn
    except (ImportError, AttributeError):
        raise CannotDoError("no packed lengths before PyTorch 2.10") from None
    causal = bool(inputs.problem.case.options.get("causal"))
    named = inspect.signature(varlen).parameters
    bound = {"is_causal": causal} if "is_causal" in named else {"window_size": (-1, 0 if causal else -1)}
    return _tried(
        _entry(lambda: varlen(inputs.q, inputs.k, inputs.v, *_packed(inputs), **bound), before=_only("flash"))
    )


def _packed(inputs: Inputs) -> tuple[Tensor, Tensor, int, int]:
    most = longest(inputs.lengths)
    cu_q, cu_k = inputs.tensors["cu_seqlens_q"], inputs.tensors["cu_seqlens_k"]
    return cu_q, cu_k, most["max_seqlen_q"], most["max_seqlen_k"]


# ---------------------------------------------------------------------------------------------------------------------
# FlashAttention 3 and 4, FlashInfer


def _module(*names: str) -> ModuleType:
    reasons: list[str] = []
    for name in names:
        try:
            return importlib.import_module(name)
        except ImportError as error:
            reasons.append(str(error))
        except Exception as error:  # a library that fails while it is imported is none
            reasons.append(f"{name} fails on import: {type(error).__name__}: {in_short(error)}")
    raise ImportError("; ".join(dict.fromkeys(reasons)))


def _version(distributions: tuple[str, ...], module: ModuleType) -> str:
    from importlib import metadata

    for name in distributions:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
    return str(getattr(module, "__version__", "unknown version"))


def _flash_attention(
    name: str, modules: tuple[str, ...], distributions: tuple[str, ...], unbounded: int | None
) -> Library:
    """Those of the interface flash_attn_func(q, k, v, causal=…), with (batch, length, heads, head_dim)."""

    def prepare(inputs: Inputs) -> Entry:
        module, case = _module(*modules), inputs.problem.case
        _require(inputs, packed=case.packed, options=("window", "softcap"))
        function = module.flash_attn_varlen_func if case.packed else module.flash_attn_func
        named = inspect.signature(function).parameters
        options: dict[str, Any] = {"causal": bool(case.options.get("causal"))}
        if "window" in case.options:
            options["window_size"] = tuple(unbounded if bound < 0 else bound for bound in case.options["window"])
        if "softcap" in case.options:
            options["softcap"] = case.options["softcap"]
        for option in options:
            if option not in named:
                raise CannotDoError(f"no {option}")
        if case.packed:
            bounds = dict(
                zip(("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"), _packed(inputs), strict=True)
            )
            options.update({key: value for key, value in bounds.items() if key in named})
            return _tried(_entry(lambda: function(inputs.q, inputs.k, inputs.v, **options)))
        q, k, v = (x.transpose(1, 2).contiguous() for x in (inputs.q, inputs.k, inputs.v))
        return _tried(_entry(lambda: function(q, k, v, **options), lambda out: out.transpose(1, 2)))

    return Library(name, lambda: _version(distributions, _module(*modules)), prepare, distributions[0])


def _flashinfer(inputs: Inputs) -> Entry:
    module, case = _module("flashinfer"), inputs.problem.case
    _require(inputs, packed=case.packed, options=("window", "softcap"))
    if case.options.get("window", (-1, 0))[1] != 0 and "window" in case.options:
        raise CannotDoError("no window to the right")
    if case.packed:
        q, k, v = inputs.q, inputs.k, inputs.v
        bounds = [inputs.tensors["cu_seqlens_q"], inputs.tensors["cu_seqlens_k"]]
    else:
        q, k, v = (
            x.transpose(1, 2).reshape(-1, x.shape[1], x.shape[3]).contiguous() for x in (inputs.q, inputs.k, inputs.v)
        )
        bounds = [torch.arange(case.batch + 1, device=q.device, dtype=torch.int32) * seq for seq in case.seq]
    workspace = torch.empty(256 << 20, device=q.device, dtype=torch.uint8)
    wrapper = module.BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD")
    wrapper.plan(
        *bounds, case.heads[0], case.heads[1], case.head_dim[0], head_dim_vo=case.head_dim[1],
        causal=bool(case.options.get("causal") or "window" in case.options),
        window_left=case.options.get("window", (-1, -1))[0],
        logits_soft_cap=case.options.get("softcap"),
        q_data_type=q.dtype,
    )  # fmt: skip

    def axes(out: Tensor) -> Tensor:
        return out if case.packed else out.reshape(case.batch, case.seq[0], *out.shape[1:]).transpose(1, 2)

    return _tried(_entry(lambda: wrapper.run(q, k, v), axes))


GPU_LIBRARIES = (
    Library("SDPA-FA2", _torch_version, _sdpa_fa2),
    Library("SDPA-cuDNN", _torch_version, _sdpa("cudnn", ("mask", "dense_mask", "bias"))),
    Library("SDPA-efficient", _torch_version, _sdpa("efficient", ("mask", "dense_mask", "bias"))),
    _flash_attention("FA3", ("fa3_fwd_interface", "flash_attn_interface"), ("fa3-fwd", "flash-attn-3"), -1),
    _flash_attention(
        "FA4", ("flash_attn.cute.interface", "flash_attn.cute"), ("flash-attn-4", "flash-attn-cute"), None
    ),
    Library(
        "FlashInfer", lambda: _version(("flashinfer-python",), _module("flashinfer")), _flashinfer, "flashinfer-python"
    ),
)
CPU_LIBRARIES = (Library("SDPA", _torch_version, _sdpa_cpu),)


def own(backend: str = "auto") -> Library:
    return Library("flashcute", lambda: flashcute.__version__, functools.partial(_flashcute, backend=backend))


_UNASKED = ("SDPA-efficient",)  # measured by name, or where a feature leaves FA2 and cuDNN out


def find(gpu: bool, wanted: list[str] | None, mode: str, backend: str = "auto") -> tuple[list[Library], list[str]]:
    """flashcute by that backend, the peers that are installed, of those wanted, and a sentence on each that is not.

    Raises ValueError on a name that is none.
    """
    known = GPU_LIBRARIES if gpu else CPU_LIBRARIES
    names = [library.name for library in known]
    by_lower = {name.lower(): name for name in names}
    for name in wanted or ():
        if name.lower() not in by_lower:
            raise ValueError(f"--peers: expected some of {', '.join(names)}, given {name}")
    chosen = (
        {by_lower[name.lower()] for name in wanted}
        if wanted is not None
        else {name for name in names if mode == "features" or name not in _UNASKED}
    )
    found: list[Library] = [own(backend)]
    absent: list[str] = []
    for library in known:
        if library.name not in chosen:
            continue
        try:
            library.find()
        except ImportError as error:
            absent.append(f"{library.name} was looked for and is not here: {error} (pip package {library.package})")
        else:
            found.append(library)
    return found, absent
