"""The tokens in a batch of a language model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor


def tokens_in(batch: Any) -> int:
    """The tokens that the attention mask of a batch marks, or else the number of its input ids.
    0 if the batch is no mapping that has either."""
    if not isinstance(batch, Mapping):
        return 0
    mask, ids = batch.get("attention_mask"), batch.get("input_ids")
    # A mask of more dimensions says which token sees which one.
    if isinstance(mask, Tensor) and mask.dim() == 2:
        return int((mask != 0).sum())
    return ids.numel() if isinstance(ids, Tensor) else 0
