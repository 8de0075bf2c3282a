// Marks functions that both the host and CUDA kernels call.
#pragma once
#ifdef __CUDACC__
#define GLD_HOST_DEVICE __host__ __device__
#else
#define GLD_HOST_DEVICE
#endif
