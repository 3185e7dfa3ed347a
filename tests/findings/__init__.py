"""Findings: their verdicts, their severity, and one entry for one fault."""
