"""Reads model code and says where its gradients are at risk: text in, findings out.

No torch, no database, no network, and nothing of the other rooms.
"""
