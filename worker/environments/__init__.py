"""A submitted repository's own requirements, as a layer of packages behind the worker's own.

Off by default. Wheels only, and never anything of the repository's: its requirements are read as text, built with
network but without its code, and used without network.
"""

from worker.environments.layers import Layer, layer_for

__all__ = ["Layer", "layer_for"]
