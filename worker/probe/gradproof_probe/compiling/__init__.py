"""Compiled against eager execution: the stages of torch.compile, and where and why they give something else."""
