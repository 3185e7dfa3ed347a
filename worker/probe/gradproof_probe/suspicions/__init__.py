"""Settles what static findings suspect, each at its own place. It must not find faults that nobody suspected."""
