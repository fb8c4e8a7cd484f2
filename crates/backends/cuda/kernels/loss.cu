// Softmax cross-entropy with label smoothing, and its gradient. A label below 0 marks a place without a sample.
#include "block.h"
#include "label.h"

// The smoothed target: the share of every class, and what the labels have together beyond it.
struct SmoothedTarget {
    float everywhere;
    float extra;
};

struct CrossEntropy {
    const float *logits;   // [samples, classes]
    Labels labels;
    float *probabilities;  // [samples, classes]
    float *losses;         // [samples]
    float *hits;           // [samples]
    uint64_t samples;
    uint64_t classes;
    SmoothedTarget target;
};

// Probabilities, and the loss and hit of each sample. A block takes one sample at a time.
KERNEL(cross_entropy, CrossEntropy) {
    SHARED(float[256], shared);
    SHARED(uint64_t[256], indices);
    for (uint64_t sample = blockIdx.x; sample < a.samples; sample += gridDim.x) {
        const float *logits = a.logits + sample * a.classes;
        float *probabilities = a.probabilities + sample * a.classes;
        const SampleLabels labels = labels_of(a.labels, sample);
        const float largest = row_max(shared, logits, a.classes);
        float sum = 0.0f, distances = 0.0f, own = 0.0f, other = 0.0f;
        uint64_t first = a.classes;
        for (uint64_t at = threadIdx.x; at < a.classes; at += blockDim.x) {
            // Subtracting the largest logit changes only the range of the exponentials.
            const float distance = largest - logits[at];
            sum += expf(-distance);
            distances += distance;
            own = at == labels.own ? distance : own;
            other = at == labels.other ? distance : other;
            first = logits[at] == largest && at < first ? at : first;
        }
        sum = block_sum(shared, sum);
        for (uint64_t at = threadIdx.x; at < a.classes; at += blockDim.x) {
            probabilities[at] = expf(logits[at] - largest) / sum;
        }
        // A sum over all threads fetches a label's distance from the only thread that has it.
        own = block_sum(shared, own);
        other = a.labels.others == nullptr ? 0.0f : block_sum(shared, other);
        distances = block_sum(shared, distances);
        first = block_min(indices, first);
        if (threadIdx.x == 0) {
            // A share of 0 adds nothing, even at a logit of minus infinity.
            const float log_sum = logf(sum);
            const float extra = a.target.extra * labels.share, other_extra = a.target.extra * labels.other_share;
            float loss = extra != 0.0f ? extra * (log_sum + own) : 0.0f;
            loss += other_extra != 0.0f ? other_extra * (log_sum + other) : 0.0f;
            loss += a.target.everywhere != 0.0f ? a.target.everywhere * (a.classes * log_sum + distances) : 0.0f;
            a.losses[sample] = labels.own == NO_LABEL ? 0.0f : loss;
            a.hits[sample] = first == labels.own ? 1.0f : 0.0f;
        }
    }
}

struct CrossEntropySum {
    const float *losses;  // [samples]
    const float *hits;    // [samples]
    float *loss;          // [1]
    float *correct;       // [1]
    uint64_t samples;
    float scale;
};

// The sums over samples, by one block.
KERNEL(cross_entropy_sum, CrossEntropySum) {
    SHARED(float[256], shared);
    float loss = 0.0f, correct = 0.0f;
    for (uint64_t sample = threadIdx.x; sample < a.samples; sample += blockDim.x) {
        loss += a.losses[sample];
        correct += a.hits[sample];
    }
    loss = block_sum(shared, loss);
    correct = block_sum(shared, correct);
    if (threadIdx.x == 0) {
        *a.loss = a.scale * loss;
        *a.correct = correct;
    }
}

struct CrossEntropyBackward {
    const float *probabilities;  // [samples, classes]
    Labels labels;
    float *dlogits;              // [samples, classes], which may be the probabilities
    uint64_t samples;
    uint64_t classes;
    float scale;
    SmoothedTarget target;
};

KERNEL(cross_entropy_backward, CrossEntropyBackward) {
    for (uint64_t sample = blockIdx.x; sample < a.samples; sample += gridDim.x) {
        const SampleLabels labels = labels_of(a.labels, sample);
        const uint64_t end = (sample + 1) * a.classes;
        for (uint64_t at = end - a.classes + threadIdx.x; at < end; at += blockDim.x) {
            const float share = labels.share_of(at + a.classes - end);
            const float target = a.target.everywhere + a.target.extra * share;
            a.dlogits[at] = labels.own == NO_LABEL ? 0.0f : a.scale * (a.probabilities[at] - target);
        }
    }
}
