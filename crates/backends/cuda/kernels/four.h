// Four adjacent elements as one access, where all of them lie before the end of their array and after a multiple of four.
#pragma once

#include "element.h"

// The elements from `at` on, with zeros from `end` on.
__device__ __forceinline__ void load_four(const float *from, uint64_t at, uint64_t end, float (&values)[4]) {
    if (at % 4 == 0 && at + 4 <= end) {
        load(from, at, values);
        return;
    }
    for (int i = 0; i < 4; i++) values[i] = at + i < end ? from[at + i] : 0.0f;
}

// Stores the elements from `at` on, up to `end`.
__device__ __forceinline__ void store_four(float *to, uint64_t at, uint64_t end, const float (&values)[4]) {
    if (at % 4 == 0 && at + 4 <= end) {
        store(to, at, values);
        return;
    }
    for (int i = 0; i < 4; i++) {
        if (at + i < end) to[at + i] = values[i];
    }
}
