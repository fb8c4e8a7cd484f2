// Sums of squares that stay exact over millions of elements.
#pragma once

#include "four.h"

// A sum with what its roundings have left out.
//
// Source: A. Neumaier, "Rundungsfehleranalyse einiger Verfahren zur Summation endlicher Summen", 1974, with D. E. Knuth's
// TwoSum for the error of an addition.
struct CompensatedSum {
    float sum;
    float rest;

    __device__ __forceinline__ void add(float value) {
        const float total = sum + value;
        const float added = total - sum;
        rest += (sum - (total - added)) + (value - added);
        sum = total;
    }

    // An overflow stays infinite: its rest is NaN.
    __device__ __forceinline__ float total() const {
        return sum - sum == 0.0f ? sum + rest : sum;
    }
};

// Adds the squares of the elements, times `factor`, that this thread takes from `start` to `end`, in steps of `stride`.
__device__ __forceinline__ void add_squares(CompensatedSum &sum, const float *x, uint64_t start, uint64_t end,
                                            uint64_t stride, float factor) {
    for (uint64_t at = start; at < end; at += stride) {
        float four[4];
        load_four(x, at, end, four);
        for (int i = 0; i < 4; i++) {
            const float x = factor * four[i];
            sum.add(x * x);
        }
    }
}
