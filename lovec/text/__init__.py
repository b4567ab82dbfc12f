"""Text without a model: documents, sentences, clauses, evidence cut to a budget, answers split at their tags."""
