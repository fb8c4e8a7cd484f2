// The optimisers, over all ranges of an update at once.
//
// Ranges are cut into pieces of a fixed size, and a block takes one piece at a time. What depends on a range alone is
// computed before the elements, by kernels that write a rate for each range. After a failure, and in a step that loss scaling
// skips, nothing changes.
#include "block.h"
#include "four.h"
#include "scaling.h"
#include "squares.h"

const uint32_t PIECE = 8192;

// Adjacent elements of one group of parameters, in the order of their start.
struct Range {
    uint64_t start;
    uint64_t count;
    uint64_t first_piece;
    float weight_decay;
    float learning_rate_scale;
    uint32_t adaptive;  // whether LARS adapts its rate to the norms of the range
    uint32_t padding;
};

struct Ranges {
    const Range *ranges;
    uint64_t count;
    uint64_t pieces;
};

struct Piece {
    uint64_t range;
    uint64_t start;
    uint64_t end;
};

__device__ __forceinline__ Piece find_piece(const Ranges &ranges, uint64_t piece) {
    // The last range whose first piece is not after this one.
    uint64_t low = 0, high = ranges.count;
    while (high - low > 1) {
        const uint64_t middle = (low + high) / 2;
        if (ranges.ranges[middle].first_piece <= piece) {
            low = middle;
        } else {
            high = middle;
        }
    }
    const Range &range = ranges.ranges[low];
    const uint64_t start = range.start + (piece - range.first_piece) * PIECE;
    const uint64_t end = range.start + range.count;
    return {low, start, start + PIECE < end ? start + PIECE : end};
}

// The factor of the gradients; NaN if the norm is NaN, as in PyTorch. Without a norm they are not clipped.
__device__ __forceinline__ float clip_factor(const float *norm, float limit) {
    if (norm == nullptr) return 1.0f;
    const float factor = limit / (*norm + 1e-6f);
    return factor > 1.0f ? 1.0f : factor;
}

struct RangeSquares {
    Ranges ranges;
    const float *weights;
    const float *gradients;
    Scaling scaling;
    float *sums;  // [pieces, 2]
};

// The squares of weights and gradients of each piece, for LARS.
KERNEL(range_squares, RangeSquares) {
    SHARED(float[256], shared);
    for (uint64_t number = blockIdx.x; number < a.ranges.pieces; number += gridDim.x) {
        const Piece piece = find_piece(a.ranges, number);
        const uint64_t start = piece.start + 4 * threadIdx.x;
        CompensatedSum weights = {}, gradients = {};
        add_squares(weights, a.weights, start, piece.end, 4 * blockDim.x, 1.0f);
        add_squares(gradients, a.gradients, start, piece.end, 4 * blockDim.x, a.scaling.factor());
        const float of_weights = block_sum(shared, weights.total());
        const float of_gradients = block_sum(shared, gradients.total());
        if (threadIdx.x == 0) {
            a.sums[2 * number] = of_weights;
            a.sums[2 * number + 1] = of_gradients;
        }
    }
}

// The numbers of SGD and LARS for a range.
struct DescentRate {
    float clip;   // factor of the gradients, also by the loss scale
    float trust;  // factor of the gradients with weight decay
    float learning_rate;
    float weight_decay;
};

struct DescentRates {
    Ranges ranges;
    const float *sums;  // [pieces, 2] by range_squares, or null without LARS
    const float *norm;  // [1], or null without clipping
    Scaling scaling;
    const StepValues *step;
    DescentRate *rates;  // [ranges]
    float limit;
    float coefficient;
    float epsilon;
};

// A block takes one range at a time.
KERNEL(descent_rates, DescentRates) {
    SHARED(float[256], shared);
    for (uint64_t number = blockIdx.x; number < a.ranges.count; number += gridDim.x) {
        const Range &range = a.ranges.ranges[number];
        const float clip = clip_factor(a.norm, a.limit);
        float trust = 1.0f;
        if (a.sums != nullptr && range.adaptive != 0) {
            CompensatedSum weights = {}, gradients = {};
            const uint64_t pieces = (range.count + PIECE - 1) / PIECE;
            for (uint64_t piece = threadIdx.x; piece < pieces; piece += blockDim.x) {
                weights.add(a.sums[2 * (range.first_piece + piece)]);
                gradients.add(a.sums[2 * (range.first_piece + piece) + 1]);
            }
            const float w = sqrtf(block_sum(shared, weights.total()));
            const float g = clip * sqrtf(block_sum(shared, gradients.total()));
            if (w > 0.0f && g > 0.0f) trust = a.coefficient * w / (g + range.weight_decay * w + a.epsilon);
        }
        if (threadIdx.x == 0) {
            const float learning_rate = a.step->learning_rate * range.learning_rate_scale;
            a.rates[number] = {a.scaling.factor() * clip, trust, learning_rate, range.weight_decay};
        }
    }
}

struct Descent {
    Ranges ranges;
    const DescentRate *rates;  // [ranges]
    const Failure *failure;
    Scaling scaling;
    const float *gradients;
    float *weights;
    float *buffer;  // or null without momentum
    float momentum;
    uint32_t nesterov;
};

// SGD, also that of LARS.
KERNEL(descent, Descent) {
    if (a.failure->shard != 0 || a.scaling.skips()) return;
    for (uint64_t number = blockIdx.x; number < a.ranges.pieces; number += gridDim.x) {
        const Piece piece = find_piece(a.ranges, number);
        const DescentRate rate = a.rates[piece.range];
        for (uint64_t at = piece.start + 4 * threadIdx.x; at < piece.end; at += 4 * blockDim.x) {
            float g[4], w[4], buffer[4], steps[4];
            load_four(a.gradients, at, piece.end, g);
            load_four(a.weights, at, piece.end, w);
            for (int i = 0; i < 4; i++) steps[i] = rate.trust * (rate.weight_decay * w[i] + rate.clip * g[i]);
            if (a.buffer != nullptr) {
                load_four(a.buffer, at, piece.end, buffer);
                for (int i = 0; i < 4; i++) {
                    buffer[i] = a.momentum * buffer[i] + steps[i];
                    steps[i] = a.nesterov != 0 ? steps[i] + a.momentum * buffer[i] : buffer[i];
                }
                store_four(a.buffer, at, piece.end, buffer);
            }
            for (int i = 0; i < 4; i++) w[i] -= rate.learning_rate * steps[i];
            store_four(a.weights, at, piece.end, w);
        }
    }
}

// The numbers of AdamW for a range.
struct AdamWRate {
    float clip;             // factor of the gradients, also by the loss scale
    float keep;             // 1 - learning rate * weight decay
    float step_size;        // learning rate / (1 - beta1 ^ step)
    float root_correction;  // 1 / sqrt(1 - beta2 ^ step)
};

struct AdamWRates {
    Ranges ranges;
    const float *norm;  // [1], or null without clipping
    Scaling scaling;
    const StepValues *step;
    AdamWRate *rates;  // [ranges]
    float limit;
    float beta1;
    float beta2;
};

// A thread takes one range at a time. The corrections cancel most digits of a float, so they are computed in f64.
KERNEL(adamw_rates, AdamWRates) {
    const uint64_t stride = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t at = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; at < a.ranges.count; at += stride) {
        const Range &range = a.ranges.ranges[at];
        const double rate = (double)a.step->learning_rate * range.learning_rate_scale;
        const double step = (double)a.scaling.update(a.step);
        const double first = 1.0 - pow((double)a.beta1, step);
        const double second = 1.0 - pow((double)a.beta2, step);
        const float keep = (float)(1.0 - rate * range.weight_decay);
        const float clip = a.scaling.factor() * clip_factor(a.norm, a.limit);
        a.rates[at] = {clip, keep, (float)(rate / first), (float)(1.0 / sqrt(second))};
    }
}

struct AdamW {
    Ranges ranges;
    const AdamWRate *rates;  // [ranges]
    const Failure *failure;
    Scaling scaling;
    const float *gradients;
    float *weights;
    float *first;   // exp_avg
    float *second;  // exp_avg_sq
    float beta1;
    float beta2;
    float epsilon;
};

KERNEL(adamw, AdamW) {
    if (a.failure->shard != 0 || a.scaling.skips()) return;
    for (uint64_t number = blockIdx.x; number < a.ranges.pieces; number += gridDim.x) {
        const Piece piece = find_piece(a.ranges, number);
        const AdamWRate rate = a.rates[piece.range];
        for (uint64_t at = piece.start + 4 * threadIdx.x; at < piece.end; at += 4 * blockDim.x) {
            float g[4], w[4], first[4], second[4];
            load_four(a.gradients, at, piece.end, g);
            load_four(a.weights, at, piece.end, w);
            load_four(a.first, at, piece.end, first);
            load_four(a.second, at, piece.end, second);
            for (int i = 0; i < 4; i++) {
                g[i] *= rate.clip;
                // As in PyTorch's `lerp_`.
                first[i] += (1.0f - a.beta1) * (g[i] - first[i]);
                second[i] = a.beta2 * second[i] + (1.0f - a.beta2) * g[i] * g[i];
                const float root = sqrtf(second[i]) * rate.root_correction;
                w[i] = w[i] * rate.keep - rate.step_size * first[i] / (root + a.epsilon);
            }
            store_four(a.first, at, piece.end, first);
            store_four(a.second, at, piece.end, second);
            store_four(a.weights, at, piece.end, w);
        }
    }
}
