// Averages of weights and running statistics over the steps, and the running statistics themselves. After a failure nothing
// changes.
#include "four.h"
#include "scaling.h"

struct Average {
    const float *values;  // [count]
    float *averages;      // [count]
    const StepValues *step;
    const Failure *failure;
    Scaling scaling;
    uint64_t count;
    float share;  // of the difference between a value and its average
};

// The first update copies: it reads no average. A step that loss scaling skips changes none.
KERNEL(average, Average) {
    if (a.failure->shard != 0 || a.scaling.skips()) return;
    const bool is_first = a.scaling.update(a.step) == 1;
    const uint64_t stride = 4 * (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t at = 4 * ((uint64_t)blockIdx.x * blockDim.x + threadIdx.x); at < a.count; at += stride) {
        float values[4], averages[4];
        load_four(a.values, at, a.count, values);
        if (!is_first) {
            load_four(a.averages, at, a.count, averages);
            for (int i = 0; i < 4; i++) values[i] = averages[i] + a.share * (values[i] - averages[i]);
        }
        store_four(a.averages, at, a.count, values);
    }
}

struct Lookahead {
    float *values;  // [count]
    float *slow;    // [count]
    const StepValues *step;
    const Failure *failure;
    uint64_t count;
};

// Values and slow weights become what lies between them, in a step that says where.
KERNEL(lookahead, Lookahead) {
    const float alpha = a.step->lookahead;
    if (a.failure->shard != 0 || alpha < 0.0f) return;
    const uint64_t stride = 4 * (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t at = 4 * ((uint64_t)blockIdx.x * blockDim.x + threadIdx.x); at < a.count; at += stride) {
        float values[4], slow[4];
        load_four(a.values, at, a.count, values);
        load_four(a.slow, at, a.count, slow);
        for (int i = 0; i < 4; i++) values[i] = values[i] + (1.0f - alpha) * (slow[i] - values[i]);
        store_four(a.values, at, a.count, values);
        store_four(a.slow, at, a.count, values);
    }
}

// The running statistics of a batch norm. Places are indices of floats.
struct RunningRange {
    uint64_t update;    // [2, channels]: means, variances
    uint64_t mean;      // [channels]
    uint64_t variance;  // [channels]
    uint32_t channels;
    float momentum;
};

struct RunningUpdate {
    const RunningRange *ranges;
    const Failure *failure;
    const float *updates;
    float *running;
};

// A row of blocks takes one range.
KERNEL(running_update, RunningUpdate) {
    if (a.failure->shard != 0) return;
    const RunningRange range = a.ranges[blockIdx.y];
    const float *update = a.updates + range.update;
    float *mean = a.running + range.mean, *variance = a.running + range.variance;
    const float keep = 1.0f - range.momentum;
    for (uint32_t at = blockIdx.x * blockDim.x + threadIdx.x; at < range.channels; at += gridDim.x * blockDim.x) {
        mean[at] = keep * mean[at] + range.momentum * update[at];
        variance[at] = keep * variance[at] + range.momentum * update[range.channels + at];
    }
}
