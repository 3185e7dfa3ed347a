"""Reads facts out of the torch that is installed; the analyzer reads them back without torch.

Nothing here is shipped or imported by the product: `tools/make_facts.py` runs it and writes `analyzer/facts/*.json`.
"""
