// What shards combine per channel, in the fixed tree over shards.
#include "kernel.h"

// Combines leaf(0) to leaf(count - 1), at least one: a group of n splits at the largest power of two below n.
template <class T, class Leaf, class Join>
__device__ __forceinline__ T fold_tree(uint64_t count, Leaf leaf, Join join) {
    // Complete subtrees, of sizes that descend by powers of two.
    T subtrees[32];
    uint32_t depth = 0;
    for (uint64_t at = 0; at < count; at++) {
        T value = leaf(at);
        for (uint64_t size = at + 1; size % 2 == 0; size /= 2) value = join(subtrees[--depth], value);
        subtrees[depth++] = value;
    }
    T value = subtrees[--depth];
    while (depth > 0) value = join(subtrees[--depth], value);
    return value;
}

struct Sync {
    const float *rows;  // [shards, 2, channels]
    float *result;      // [2, channels]
    uint64_t shards;
    uint64_t channels;
};

// Mean and variance over a number of shards. All shards have the same number of pixels, which therefore cancels out.
struct Moments {
    float shards;
    float mean;       // less that of the first shard, so that differences keep their digits
    float variances;  // the sum of squared deviations, divided by the pixels of one shard
};

// Source: T. F. Chan, G. H. Golub, R. J. LeVeque, "Updating formulae and a pairwise algorithm for computing sample
// variances", 1979.
KERNEL(sync_statistics, Sync) {
    const uint64_t stride = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t at = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; at < a.channels; at += stride) {
        const float first = a.rows[at];
        auto leaf = [&](uint64_t shard) {
            const float *mean = a.rows + 2 * shard * a.channels + at;
            return Moments{1.0f, mean[0] - first, mean[a.channels]};
        };
        auto join = [](Moments x, Moments y) {
            const float shards = x.shards + y.shards, delta = y.mean - x.mean;
            const float mean = x.mean + delta * (y.shards / shards);
            return Moments{shards, mean, x.variances + y.variances + delta * delta * (x.shards * y.shards / shards)};
        };
        const Moments all = fold_tree<Moments>(a.shards, leaf, join);
        a.result[at] = first + all.mean;
        a.result[a.channels + at] = all.variances / all.shards;
    }
}

KERNEL(sync_sum, Sync) {
    const uint64_t stride = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t at = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; at < 2 * a.channels; at += stride) {
        auto leaf = [&](uint64_t shard) { return a.rows[2 * shard * a.channels + at]; };
        a.result[at] = fold_tree<float>(a.shards, leaf, [](float x, float y) { return x + y; });
    }
}
