"""Text to token ids and back: chat templates, prompts, sources in prompts, and the choices that a score is one of."""

from lovec.encoding.encoder import (
    DEFAULT_SCORING,
    EVIDENCE,
    INSTRUCTION,
    QUESTION,
    Author,
    Encoder,
    Grounding,
    Scoring,
    UserTurn,
    default_grounding,
    default_instruction,
    dialogue_parts,
    distinct_prefixes,
    prompt_settings,
)
from lovec.encoding.token_texts import without_half_character

__all__ = [
    "DEFAULT_SCORING",
    "EVIDENCE",
    "INSTRUCTION",
    "QUESTION",
    "Author",
    "Encoder",
    "Grounding",
    "Scoring",
    "UserTurn",
    "default_grounding",
    "default_instruction",
    "dialogue_parts",
    "distinct_prefixes",
    "prompt_settings",
    "without_half_character",
]
