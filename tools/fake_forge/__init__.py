"""A small stateful GitHub, with a subset of GitLab, for tests and the demo. Not part of the product."""

from tools.fake_forge.forge import FakeForge

__all__ = ["FakeForge"]
