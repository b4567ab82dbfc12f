"""Readers and writers of data: records as JSONL, preference pairs, FActScore's labelled files, the embedded world."""
