"""Another device against the CPU: where tensors lie, what its kernels compute, and where a difference begins."""
