// Four adjacent elements as one access, where all of them lie before the end of their array and after a multiple of four.
#pragma once

#include "element.h"

// The elements from `at` on as f32, with zeros from `end` on.
template <class E>
__device__ __forceinline__ void load_four(const E *from, uint64_t at, uint64_t end, float (&values)[4]) {
    if (at % 4 == 0 && at + 4 <= end) {
        load(from, at, values);
        return;
    }
    for (int i = 0; i < 4; i++) values[i] = at + i < end ? to_float(from[at + i]) : 0.0f;
}

// Stores the elements from `at` on, up to `end`.
template <class E>
__device__ __forceinline__ void store_four(E *to, uint64_t at, uint64_t end, const float (&values)[4]) {
    if (at % 4 == 0 && at + 4 <= end) {
        store(to, at, values);
        return;
    }
    for (int i = 0; i < 4; i++) {
        if (at + i < end) from_float(values[i], to[at + i]);
    }
}
