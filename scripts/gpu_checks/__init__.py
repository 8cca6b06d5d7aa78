"""scripts/gpu_check: what holds on this machine's GPU, in under ten minutes; with --simulated on the simulated one."""
