// Reductions over the threads of a block, whose number is a power of two, at most 256. All threads take part and get the
// result. Values are combined in a fixed tree, so the bits are always the same. `shared` is memory of the block, which any
// number of reductions may use.
#pragma once

#include "kernel.h"

template <class T, class Combine>
__device__ __forceinline__ T reduce_block(T (&shared)[256], T value, Combine combine) {
    // Some threads may still read the result of an earlier reduction.
    __syncthreads();
    shared[threadIdx.x] = value;
    for (uint32_t half = blockDim.x / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) shared[threadIdx.x] = combine(shared[threadIdx.x], shared[threadIdx.x + half]);
    }
    __syncthreads();
    return shared[0];
}

template <class T> __device__ __forceinline__ T block_sum(T (&shared)[256], T value) {
    return reduce_block(shared, value, [](T a, T b) { return a + b; });
}

template <class T> __device__ __forceinline__ T block_min(T (&shared)[256], T value) {
    return reduce_block(shared, value, [](T a, T b) { return a < b ? a : b; });
}

// The largest of a row's values that are not NaN, or minus infinity.
__device__ __forceinline__ float row_max(float (&shared)[256], const float *row, uint64_t count) {
    float largest = __uint_as_float(0xff800000u);
    for (uint64_t at = threadIdx.x; at < count; at += blockDim.x) largest = fmaxf(largest, row[at]);
    return reduce_block(shared, largest, [](float a, float b) { return a > b ? a : b; });
}
