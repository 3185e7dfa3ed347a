"""Wrong and merely other kernels on the simulated device, and what device_compare says of each."""
