// What shards tell each other about a step, and the check of their losses.
#include "block.h"

struct ShareLoss {
    const float *loss;  // [1]
    const StepValues *step;
    float *losses;    // [shards]
    float *requests;  // [2], at the end of the metrics
    uint64_t shards;
    uint64_t shard;
};

// The losses are zeros, except for this shard's at its own index. The requests are to stop and to save. By one block.
KERNEL(share_loss, ShareLoss) {
    for (uint64_t shard = threadIdx.x; shard < a.shards; shard += blockDim.x) {
        a.losses[shard] = shard == a.shard ? *a.loss : 0.0f;
    }
    if (threadIdx.x == 0) {
        a.requests[0] = a.step->stop;
        a.requests[1] = a.step->save;
    }
}

struct CheckFinite {
    const float *losses;  // [shards]
    Failure *failure;
    uint64_t shards;
};

// Records the first shard whose loss is not finite, unless there is a record. By one block.
KERNEL(check_finite, CheckFinite) {
    SHARED(uint64_t[256], indices);
    uint64_t first = a.shards;
    for (uint64_t shard = threadIdx.x; shard < a.shards; shard += blockDim.x) {
        // The difference is NaN for infinities and NaN.
        const bool is_finite = a.losses[shard] - a.losses[shard] == 0.0f;
        first = !is_finite && shard < first ? shard : first;
    }
    first = block_min(indices, first);
    if (threadIdx.x == 0 && first < a.shards && a.failure->shard == 0) {
        a.failure->loss = a.losses[first];
        a.failure->shard = (uint32_t)first + 1;
    }
}
