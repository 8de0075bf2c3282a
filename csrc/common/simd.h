// GLD_SIMD in front of a function whose loops vectorise: the compiler emits it once for each listed instruction set
// and the loader picks one. Off under sanitizers, whose runtime is not up yet when the loader picks.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__) && defined(__linux__)
#define GLD_SIMD __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define GLD_SIMD
#endif
