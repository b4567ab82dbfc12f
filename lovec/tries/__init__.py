"""Sequences that share their beginnings as one trie, and attention over it."""

from lovec.tries.attention import TriePlan
from lovec.tries.models import TRIE_ATTENTION, missing_kernels, use_trie_attention, why_not_shared
from lovec.tries.trie import Trie, TrieTokens

__all__ = [
    "TRIE_ATTENTION",
    "Trie",
    "TriePlan",
    "TrieTokens",
    "missing_kernels",
    "use_trie_attention",
    "why_not_shared",
]
