// What loss scaling says of a step to kernels that change state.
#pragma once

#include "kernel.h"

// Both are null if the loss is not scaled.
struct Scaling {
    const float *unscale;        // [2]: the factor of the gradients, or 0 if the step is skipped; the scale
    const float *skipped_steps;  // [1]: before this step

    __device__ __forceinline__ float factor() const { return unscale == nullptr ? 1.0f : unscale[0]; }

    __device__ __forceinline__ bool skips() const { return unscale != nullptr && unscale[0] == 0.0f; }

    // The number of the update, from 1, without the steps that were skipped.
    __device__ __forceinline__ uint64_t update(const StepValues *step) const {
        return step->optimizer_step - (skipped_steps == nullptr ? 0 : (uint64_t)*skipped_steps);
    }
};
