// Loss scaling: the scale of the first gradient, the check of all gradients, and the change of the scale.
#include "block.h"
#include "four.h"

struct Scale {
    const float *x;       // [count]
    const float *factor;  // [1]
    float *y;             // [count], which may be x
    uint64_t count;
};

KERNEL(scale, Scale) {
    const float factor = *a.factor;
    const uint64_t stride = 4 * (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t at = 4 * ((uint64_t)blockIdx.x * blockDim.x + threadIdx.x); at < a.count; at += stride) {
        float x[4];
        load_four(a.x, at, a.count, x);
        for (int i = 0; i < 4; i++) x[i] *= factor;
        store_four(a.y, at, a.count, x);
    }
}

struct FiniteParts {
    const float *x;  // [count]
    float *zeros;    // [blocks]
    uint64_t count;
};

// For each block 0, or NaN if a number of its part is not finite.
KERNEL(finite_parts, FiniteParts) {
    SHARED(float[256], shared);
    float zero = 0.0f;
    const uint64_t stride = 4 * (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t at = 4 * ((uint64_t)blockIdx.x * blockDim.x + threadIdx.x); at < a.count; at += stride) {
        float x[4];
        load_four(a.x, at, a.count, x);
        for (int i = 0; i < 4; i++) zero = fmaf(x[i], 0.0f, zero);
    }
    zero = block_sum(shared, zero);
    if (threadIdx.x == 0) a.zeros[blockIdx.x] = zero;
}

struct Unscale {
    const float *zeros;  // [count] by finite_parts
    const float *scale;  // [1]
    float *unscale;      // [2]
    uint64_t count;
};

// The factor that undoes the scale, or 0 if a number or the factor itself is not finite; then the scale. By one block.
KERNEL(unscale, Unscale) {
    SHARED(float[256], shared);
    float zero = 0.0f;
    for (uint64_t at = threadIdx.x; at < a.count; at += blockDim.x) zero += a.zeros[at];
    zero = block_sum(shared, zero);
    if (threadIdx.x == 0) {
        const float scale = *a.scale, factor = 1.0f / scale;
        a.unscale[0] = zero == 0.0f && factor - factor == 0.0f ? factor : 0.0f;
        a.unscale[1] = scale;
    }
}

struct UpdateScale {
    const float *unscale;  // [2]
    const Failure *failure;
    float *scale;          // [1]
    float *good_steps;     // [1]
    float *skipped_steps;  // [1]
    float growth;
    float interval;
    float backoff;
};

// As PyTorch's `GradScaler.update`. By one thread.
KERNEL(update_scale, UpdateScale) {
    if (a.failure->shard != 0 || threadIdx.x != 0) return;
    if (a.unscale[0] == 0.0f) {
        *a.scale *= a.backoff;
        *a.good_steps = 0.0f;
        *a.skipped_steps += 1.0f;
        return;
    }
    const float good_steps = *a.good_steps + 1.0f;
    *a.good_steps = good_steps < a.interval ? good_steps : 0.0f;
    const float grown = *a.scale * a.growth;
    if (good_steps >= a.interval && grown - grown == 0.0f) *a.scale = grown;
}
