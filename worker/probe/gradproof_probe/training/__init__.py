"""Training semantics: what must hold when a target is trained, saved, put into eval mode, or given a batch."""
