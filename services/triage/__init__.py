"""Triage: what a team has decided about a finding, remembered for as long as its fingerprint comes back."""
