// Moving averages of weights and running statistics, and the running statistics themselves. After a failure nothing
// changes.
#include "four.h"

struct Average {
    const float *values;  // [count]
    float *averages;      // [count]
    const StepValues *step;
    const Failure *failure;
    uint64_t count;
    float share;  // of the difference between a value and its average
};

// The first step copies: it reads no average.
KERNEL(average, Average) {
    if (a.failure->shard != 0) return;
    const bool is_first = a.step->optimizer_step == 1;
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

struct RunningUpdate {
    const float *update;  // [2, channels]: means, variances
    const Failure *failure;
    float *mean;      // [channels]
    float *variance;  // [channels]
    uint64_t channels;
    float momentum;
};

KERNEL(running_update, RunningUpdate) {
    if (a.failure->shard != 0) return;
    const uint64_t stride = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t at = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; at < a.channels; at += stride) {
        const float keep = 1.0f - a.momentum;
        a.mean[at] = keep * a.mean[at] + a.momentum * a.update[at];
        a.variance[at] = keep * a.variance[at] + a.momentum * a.update[a.channels + at];
    }
}
