// Labels of samples, and of those that are mixed into them.
#pragma once

#include "kernel.h"

// Equals no class: the place holds no sample.
const uint64_t NO_LABEL = ~(uint64_t)0;

__device__ __forceinline__ uint64_t label_of(const int *labels, uint64_t sample) {
    return labels[sample] < 0 ? NO_LABEL : (uint64_t)labels[sample];
}

// The labels of a batch. Of mixtures each sample has another label, and a share of its own from 0 to 1.
struct Labels {
    const int *own;       // [samples]
    const int *others;    // [samples]; null if nothing is mixed
    const float *shares;  // [samples]; null if nothing is mixed
};

// The labels of one sample. Without an own one the place holds no sample.
struct SampleLabels {
    uint64_t own, other;
    float share, other_share;

    // The share of a class, from 0 to 1.
    __device__ __forceinline__ float share_of(uint64_t of) const {
        return (of == own ? share : 0.0f) + (of == other ? other_share : 0.0f);
    }
};

__device__ __forceinline__ SampleLabels labels_of(const Labels &labels, uint64_t sample) {
    const uint64_t own = label_of(labels.own, sample);
    if (labels.others == nullptr || own == NO_LABEL) return {own, NO_LABEL, 1.0f, 0.0f};
    const float share = labels.shares[sample];
    return {own, label_of(labels.others, sample), share, 1.0f - share};
}
