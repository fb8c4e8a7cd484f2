// Functions of logits and labels, sample by sample. A label below 0 marks a place without a sample. A block takes one
// sample at a time.
#include "block.h"
#include "label.h"

struct LogSoftmax {
    const float *x;  // [samples, classes]
    float *y;        // [samples, classes]
    uint64_t samples;
    uint64_t classes;
};

KERNEL(log_softmax, LogSoftmax) {
    SHARED(float[256], shared);
    for (uint64_t sample = blockIdx.x; sample < a.samples; sample += gridDim.x) {
        const float *x = a.x + sample * a.classes;
        float *y = a.y + sample * a.classes;
        // Subtracting the largest element changes only the range of the exponentials.
        const float largest = row_max(shared, x, a.classes);
        float sum = 0.0f;
        for (uint64_t at = threadIdx.x; at < a.classes; at += blockDim.x) sum += expf(x[at] - largest);
        const float log_sum = logf(block_sum(shared, sum));
        for (uint64_t at = threadIdx.x; at < a.classes; at += blockDim.x) y[at] = (x[at] - largest) - log_sum;
    }
}

struct LogSoftmaxBackward {
    const float *dy;  // [samples, classes]
    const float *y;   // [samples, classes]
    float *dx;        // [samples, classes]
    uint64_t samples;
    uint64_t classes;
};

KERNEL(log_softmax_backward, LogSoftmaxBackward) {
    SHARED(float[256], shared);
    for (uint64_t sample = blockIdx.x; sample < a.samples; sample += gridDim.x) {
        const uint64_t first = sample * a.classes + threadIdx.x, end = (sample + 1) * a.classes;
        float sum = 0.0f;
        for (uint64_t at = first; at < end; at += blockDim.x) sum += a.dy[at];
        sum = block_sum(shared, sum);
        for (uint64_t at = first; at < end; at += blockDim.x) a.dx[at] = a.dy[at] - expf(a.y[at]) * sum;
    }
}

struct ScaleClasses {
    const float *x;        // [samples, classes]
    const float *factors;  // [classes]
    float *y;              // [samples, classes]
    uint64_t samples;
    uint64_t classes;
};

KERNEL(scale_classes, ScaleClasses) {
    for (uint64_t sample = blockIdx.x; sample < a.samples; sample += gridDim.x) {
        for (uint64_t at = threadIdx.x; at < a.classes; at += blockDim.x) {
            a.y[sample * a.classes + at] = a.x[sample * a.classes + at] * a.factors[at];
        }
    }
}

struct SumClasses {
    const float *x;  // [samples, classes]
    float *y;        // [samples]
    uint64_t samples;
    uint64_t classes;
};

KERNEL(sum_classes, SumClasses) {
    SHARED(float[256], shared);
    for (uint64_t sample = blockIdx.x; sample < a.samples; sample += gridDim.x) {
        float sum = 0.0f;
        for (uint64_t at = threadIdx.x; at < a.classes; at += blockDim.x) sum += a.x[sample * a.classes + at];
        sum = block_sum(shared, sum);
        if (threadIdx.x == 0) a.y[sample] = sum;
    }
}

struct SumClassesBackward {
    const float *dy;  // [samples]
    float *dx;        // [samples, classes]
    uint64_t samples;
    uint64_t classes;
};

KERNEL(sum_classes_backward, SumClassesBackward) {
    for (uint64_t sample = blockIdx.x; sample < a.samples; sample += gridDim.x) {
        for (uint64_t at = threadIdx.x; at < a.classes; at += blockDim.x) {
            a.dx[sample * a.classes + at] = a.dy[sample];
        }
    }
}

struct Targets {
    Labels labels;
    float *targets;  // [samples, classes]
    uint64_t samples;
    uint64_t classes;
};

KERNEL(targets, Targets) {
    for (uint64_t sample = blockIdx.x; sample < a.samples; sample += gridDim.x) {
        const SampleLabels labels = labels_of(a.labels, sample);
        for (uint64_t at = threadIdx.x; at < a.classes; at += blockDim.x) {
            a.targets[sample * a.classes + at] = labels.share_of(at);
        }
    }
}

struct Hits {
    const float *logits;  // [samples, classes]
    const int *labels;    // [samples]
    float *hits;          // [samples]
    uint64_t samples;
    uint64_t classes;
    uint64_t among;
};

// A hit has fewer than `among` logits before it: larger ones, and equal ones of lower classes.
KERNEL(hits, Hits) {
    SHARED(uint64_t[256], counts);
    for (uint64_t sample = blockIdx.x; sample < a.samples; sample += gridDim.x) {
        const float *logits = a.logits + sample * a.classes;
        const uint64_t label = label_of(a.labels, sample);
        const bool is_sample = label != NO_LABEL;
        const float own = logits[is_sample ? label : 0];
        uint64_t before = 0;
        for (uint64_t at = threadIdx.x; at < a.classes; at += blockDim.x) {
            before += logits[at] > own || (logits[at] == own && at < label) ? 1 : 0;
        }
        before = block_sum(counts, before);
        if (threadIdx.x == 0) {
            // Only NaN differs from itself.
            a.hits[sample] = is_sample && own == own && before < a.among ? 1.0f : 0.0f;
        }
    }
}

struct SampleSum {
    const float *values;  // [samples]
    const int *labels;    // [samples]
    float *sum;           // [1]
    uint64_t samples;
    float scale;
};

// By one block. Places without a sample may hold any value.
KERNEL(sample_sum, SampleSum) {
    SHARED(float[256], shared);
    float sum = 0.0f;
    for (uint64_t sample = threadIdx.x; sample < a.samples; sample += blockDim.x) {
        sum += label_of(a.labels, sample) == NO_LABEL ? 0.0f : a.values[sample];
    }
    sum = block_sum(shared, sum);
    if (threadIdx.x == 0) *a.sum = a.scale * sum;
}

struct SampleSumBackward {
    const int *labels;  // [samples]
    float *dvalues;     // [samples]
    uint64_t samples;
    float scale;
};

// By one block.
KERNEL(sample_sum_backward, SampleSumBackward) {
    for (uint64_t sample = threadIdx.x; sample < a.samples; sample += blockDim.x) {
        a.dvalues[sample] = label_of(a.labels, sample) == NO_LABEL ? 0.0f : a.scale;
    }
}

struct MaskSamples {
    const float *x;     // [samples, classes]
    const int *labels;  // [samples]
    float *y;           // [samples, classes], which may be x
    uint64_t samples;
    uint64_t classes;
};

KERNEL(mask_samples, MaskSamples) {
    for (uint64_t sample = blockIdx.x; sample < a.samples; sample += gridDim.x) {
        const bool is_sample = label_of(a.labels, sample) != NO_LABEL;
        for (uint64_t at = threadIdx.x; at < a.classes; at += blockDim.x) {
            a.y[sample * a.classes + at] = is_sample ? a.x[sample * a.classes + at] : 0.0f;
        }
    }
}
