"""CUDA C++ written by hand in the printer's style: what generated kernels for sm_90a are measured against."""
