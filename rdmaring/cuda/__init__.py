"""Vectors in GPU memory, by the CUDA driver through cuda-python. Nothing of it is imported before it is needed."""
