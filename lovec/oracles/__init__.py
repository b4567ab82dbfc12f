"""Oracles: say how true sentences are, in [0, 1], or None where they cannot."""
