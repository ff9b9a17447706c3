"""Speed of the GPU kernels beside PyTorch's FlashAttention-2, in one process on one card.

Each contestant is one CUDA-graph replay of one launch, interleaved round by round, L2 overwritten before each; the
figures are medians. Inputs are N(0, 1), and every result is checked against float64 on sampled rows first.
Work counted: 4 B H S^2 D, half of it for causal. The 8192^3 bf16 product runs under the same rules.

    python benchmarks/bench_gpu.py --seqs 2048 4096 8192 16384 --dims 64 128
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import flashcute

TOKENS, CHANNELS = 16384, 2048  # batch x seq, heads x head_dim
L2_BYTES = 256 << 20


@dataclass
class Row:
    head_dim: int
    mask: str
    seq: int
    kernel: str
    flashcute: float  # TFLOP/s by graph replays
    sdpa_fa2: float
    ratio: float
    flashcute_eager: float
    sdpa_fa2_eager: float
    worst_error: float


def replayed(call: Callable[[], object]) -> Callable[[], None]:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(2):
            call()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def medians(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Milliseconds a call, the calls taking turns."""
    flush = torch.empty(L2_BYTES // 4, dtype=torch.int32, device="cuda")
    events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(rounds):
        for name, call in calls.items():
            flush.zero_()
            pair = (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
            pair[0].record()
            call()
            pair[1].record()
            events[name].append(pair)
        torch.cuda.synchronize()
    return {name: statistics.median(a.elapsed_time(b) for a, b in pairs) for name, pairs in events.items()}


def worst_error(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, causal: bool, rows: int = 64
) -> float:
    """Largest difference from float64 over random rows of random heads."""
    batch, heads, seq, dim = q.shape
    worst = 0.0
    for b, h in {(0, 0), (batch - 1, heads - 1), (batch // 2, heads // 3)}:
        index = torch.randint(seq, (rows,), device=q.device)
        scores = q[b, h, index].double() @ k[b, h].double().T / math.sqrt(dim)
        if causal:
            scores.masked_fill_(torch.arange(seq, device=q.device) > index[:, None], -math.inf)
        exact = scores.softmax(-1) @ v[b, h].double()
        worst = max(worst, (exact - out[b, h, index].double()).abs().max().item())
    return worst


def measure(head_dim: int, causal: bool, seq: int, dtype: torch.dtype, rounds: int) -> Row:
    shape = (TOKENS // seq, CHANNELS // head_dim, seq, head_dim)
    q, k, v = (torch.randn(shape, device="cuda", dtype=dtype) for _ in range(3))
    out = torch.full_like(q, math.nan)
    descriptor = flashcute.AttentionDescriptor(q, k, v, out=out, causal=causal)

    def ours() -> object:
        return descriptor.run(q, k, v, out=out)

    def fa2() -> object:
        return scaled_dot_product_attention(q, k, v, is_causal=causal)

    ours()
    error = worst_error(q, k, v, out, causal)
    if not error < 0.02:
        raise SystemExit(f"head_dim {head_dim}, causal {causal}, seq {seq}: error {error} against float64")
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        times = medians(
            {"ours": replayed(ours), "fa2": replayed(fa2), "ours eager": ours, "fa2 eager": fa2},
            rounds,
        )
    flop = 4.0 * shape[0] * shape[1] * seq * seq * head_dim / (2 if causal else 1)
    speed = {name: flop / ms / 1e9 for name, ms in times.items()}
    kernel = str(descriptor.plan["kernel"])
    return Row(
        head_dim=head_dim,
        mask="causal" if causal else "full",
        seq=seq,
        kernel=kernel,
        flashcute=speed["ours"],
        sdpa_fa2=speed["fa2"],
        ratio=speed["ours"] / speed["fa2"],
        flashcute_eager=speed["ours eager"],
        sdpa_fa2_eager=speed["fa2 eager"],
        worst_error=error,
    )


def matrix_product(rounds: int) -> float:
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    c = torch.empty_like(a)
    ms = medians({"product": replayed(lambda: torch.matmul(a, b, out=c))}, rounds)["product"]
    return 2 * 8192**3 / ms / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seqs", type=int, nargs="+", default=[1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--dims", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--masks", nargs="+", choices=["full", "causal"], default=["full", "causal"])
    parser.add_argument("--dtype", choices=["bfloat16", "float16"], default="bfloat16")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", help="also write the rows to this file")
    args = parser.parse_args()

    torch.manual_seed(0)
    print(
        f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, flashcute {flashcute.__version__}, {args.dtype}"
    )
    print(f"8192^3 bf16 matrix product: {matrix_product(args.rounds):.0f} TFLOP/s")
    print(
        f"{'D':>4} {'mask':<7}{'seq':>6} {'flashcute':>10} {'SDPA-FA2':>9} {'ratio':>6}   eager: both   error    kernel"
    )
    rows = []
    for head_dim in args.dims:
        for mask in args.masks:
            for seq in args.seqs:
                row = measure(head_dim, mask == "causal", seq, getattr(torch, args.dtype), args.rounds)
                rows.append(row)
                print(
                    f"{head_dim:>4} {mask:<7}{seq:>6} {row.flashcute:>10.0f} {row.sdpa_fa2:>9.0f} {row.ratio:>6.2f}"
                    f" {row.flashcute_eager:>12.0f} {row.sdpa_fa2_eager:>4.0f} {row.worst_error:>9.1e}   {row.kernel}",
                    flush=True,
                )
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"device": torch.cuda.get_device_name(), "rows": [asdict(row) for row in rows]}, file, indent=1)


if __name__ == "__main__":
    main()
