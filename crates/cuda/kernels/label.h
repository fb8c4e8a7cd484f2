// Labels of samples.
#pragma once

#include "kernel.h"

// Equals no class: the place holds no sample.
const uint64_t NO_LABEL = ~(uint64_t)0;

__device__ __forceinline__ uint64_t label_of(const int *labels, uint64_t sample) {
    return labels[sample] < 0 ? NO_LABEL : (uint64_t)labels[sample];
}
