// The norm of all gradients. Each block adds the squares of a fixed part of them, and then one block adds all sums.
#include "block.h"
#include "squares.h"

struct GradientSquares {
    const float *x;      // [count]
    const float *scale;  // [1] by which x was multiplied, or null
    float *sums;         // [blocks]
    uint64_t count;
};

// The sum of squares of each block's part.
KERNEL(gradient_squares, GradientSquares) {
    SHARED(float[256], shared);
    const uint64_t thread = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    CompensatedSum sum = {};
    const float factor = a.scale == nullptr ? 1.0f : 1.0f / *a.scale;
    add_squares(sum, a.x, 4 * thread, a.count, 4 * (uint64_t)gridDim.x * blockDim.x, factor);
    const float total = block_sum(shared, sum.total());
    if (threadIdx.x == 0) a.sums[blockIdx.x] = total;
}

struct GradientNorm {
    const float *sums;  // [count]
    float *norm;        // [1]
    uint64_t count;
};

// The root of all sums, by one block.
KERNEL(gradient_norm, GradientNorm) {
    SHARED(float[256], shared);
    CompensatedSum sum = {};
    for (uint64_t at = threadIdx.x; at < a.count; at += blockDim.x) sum.add(a.sums[at]);
    const float total = block_sum(shared, sum.total());
    if (threadIdx.x == 0) *a.norm = sqrtf(total);
}
