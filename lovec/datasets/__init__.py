"""Readers and writers of data: records as JSONL, preference pairs, evidence, public data sets, the embedded world."""
