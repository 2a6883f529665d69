"""Tools for tests of kernels: mutants, which a judge must tell from the kernel (``graphene.testing.mutate``)."""
