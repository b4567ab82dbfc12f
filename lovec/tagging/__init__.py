"""Tag any text: the work behind ``lovec tag`` and ``lovec.tag``."""

from lovec.tagging.apis import OPENAI, P_TRUE_SCALE, ApiModel, ApiTagger
from lovec.tagging.base import CUT_OFF, DocumentTagger, with_unknown_words
from lovec.tagging.methods import SAMPLED, Method, MethodTagger, check_questions
from lovec.tagging.revising import PHRASES, Revise, Revised, revise
from lovec.tagging.selection import Selection
from lovec.tagging.texts import (
    DEFAULT_QUESTION,
    Documents,
    TextTagger,
    about_question,
    guessed_question,
    question_notices,
    read_sources,
    tag,
    text_record,
    topic_of,
)

__all__ = [
    "CUT_OFF",
    "DEFAULT_QUESTION",
    "OPENAI",
    "PHRASES",
    "P_TRUE_SCALE",
    "SAMPLED",
    "ApiModel",
    "ApiTagger",
    "DocumentTagger",
    "Documents",
    "Method",
    "MethodTagger",
    "Revise",
    "Revised",
    "Selection",
    "TextTagger",
    "about_question",
    "check_questions",
    "guessed_question",
    "question_notices",
    "read_sources",
    "revise",
    "tag",
    "text_record",
    "topic_of",
    "with_unknown_words",
]
