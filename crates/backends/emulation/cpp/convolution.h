// Convolutions over host memory by plain loops, in NHWC with filters in KRSC. Products are summed in f32 in short runs, and the
// runs in f64.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "library.h"

namespace emulation {

enum Direction { FORWARD, BACKWARD_DATA, BACKWARD_WEIGHTS };

// cuDNN's numbers of the element types.
enum Type { F32 = 0, F16 = 2, BF16 = 9 };

struct Convolution {
    Direction direction;
    // Batch, height, width, channels; outputs, height, width, inputs of a group.
    int64_t x[4], w[4], y[4];
    int64_t stride[2], padding[2], dilation[2];  // the padding is that before the first pixel
    Type maps, weights;
    bool rounds;      // operands to tf32
    bool accumulate;  // the result is added to what is there
    bool wrong;       // the result is a hundredth too large
    void *x_at, *w_at, *y_at;
    const void *bias;  // of the type of maps, or null
    bool has_relu;
    void *workspace;
    size_t workspace_bytes;
};

// The loops that take the time, for two levels of the processor.
__attribute__((optimize("O3"), target_clones("avx2", "default"))) inline void add_product(float *to, const float *row, float scalar, int64_t count) {
    for (int64_t i = 0; i < count; i++) to[i] += scalar * row[i];
}

inline size_t elements(const int64_t shape[4]) { return size_t(shape[0] * shape[1] * shape[2] * shape[3]); }

inline float load(const void *from, size_t at, Type type) {
    if (type == F32) return static_cast<const float *>(from)[at];
    uint16_t bits = static_cast<const uint16_t *>(from)[at];
    return type == BF16 ? from_bf16(bits) : from_f16(bits);
}

inline void store(void *to, size_t at, Type type, float value) {
    if (type == F32) {
        static_cast<float *>(to)[at] = value;
    } else {
        static_cast<uint16_t *>(to)[at] = type == BF16 ? to_bf16(value) : to_f16(value);
    }
}

inline std::vector<float> loaded(const void *from, size_t count, Type type, bool rounds) {
    std::vector<float> values(count);
    for (size_t i = 0; i < count; i++) {
        float value = load(from, i, type);
        values[i] = rounds ? tf32(value) : value;
    }
    return values;
}

inline void run(const Convolution *call) {
    const Convolution &c = *call;
    const int64_t batch = c.x[0], inputs = c.w[3], outputs_all = c.y[3], channels = c.x[3];
    const int64_t groups = channels / inputs, outputs = outputs_all / groups, taps = c.w[1] * c.w[2];
    const int64_t run_of_products = 32;
    // The operands; not the result.
    auto x = loaded(c.x_at, c.direction == BACKWARD_DATA ? 0 : elements(c.x), c.maps, c.rounds);
    auto w = loaded(c.w_at, c.direction == BACKWARD_WEIGHTS ? 0 : elements(c.w), c.weights, c.rounds);
    auto y = loaded(c.y_at, c.direction == FORWARD ? 0 : elements(c.y), c.maps, c.rounds);
    // A wrong workspace is overwritten here, as any memory that is not ours to keep.
    if (c.workspace) memset(c.workspace, 0xff, c.workspace_bytes);
    // Filters with the output channels of a group adjacent: [group][tap][input][output].
    std::vector<float> turned(c.direction == FORWARD ? w.size() : 0);
    for (size_t at = 0; at < turned.size(); at++) {
        int64_t input = at % inputs, tap = at / inputs % taps, output = at / inputs / taps;
        turned[(((output / outputs) * taps + tap) * inputs + input) * outputs + output % outputs] = w[at];
    }
    std::vector<double> weights(c.direction == BACKWARD_WEIGHTS ? elements(c.w) : 0);
    std::vector<float> part(std::max(weights.size(), size_t(std::max(inputs, outputs))));
    std::vector<double> sum(part.size());
    int64_t pixels = 0;
    auto flush = [&] {
        for (size_t at = 0; at < weights.size(); at++) {
            weights[at] += part[at];
            part[at] = 0;
        }
        pixels = 0;
    };
    // Adds the products of `count` scalars with rows of `width` values to `sum`, in short runs.
    auto products = [&](const float *scalars, int64_t count, const float *rows, int64_t step, int64_t width) {
        for (int64_t start = 0; start < count; start += run_of_products) {
            std::fill_n(part.begin(), width, 0.0f);
            for (int64_t i = start; i < std::min(count, start + run_of_products); i++)
                add_product(part.data(), rows + i * step, scalars[i], width);
            for (int64_t j = 0; j < width; j++) sum[j] += part[j];
        }
    };
    // The pixel of x under a tap of the window at a pixel of y, along an axis; outside it is below 0 or beyond.
    auto under = [&](int axis, int64_t at, int64_t tap) {
        return at * c.stride[axis] - c.padding[axis] + tap * c.dilation[axis];
    };
    // The pixel of y whose window has a pixel of x under this tap, or -1.
    auto over = [&](int axis, int64_t at, int64_t tap) {
        int64_t place = at + c.padding[axis] - tap * c.dilation[axis];
        bool is_there = place >= 0 && place % c.stride[axis] == 0 && place / c.stride[axis] < c.y[1 + axis];
        return is_there ? place / c.stride[axis] : -1;
    };
    const int64_t *result = c.direction == BACKWARD_DATA ? c.x : c.y;
    for (int64_t n = 0; n < batch; n++)
        for (int64_t h = 0; h < result[1]; h++)
            for (int64_t v = 0; v < result[2]; v++)
                for (int64_t group = 0; group < groups; group++) {
                    const int64_t width = c.direction == BACKWARD_DATA ? inputs : outputs;
                    if (c.direction != BACKWARD_WEIGHTS) std::fill_n(sum.begin(), width, 0.0);
                    const size_t pixel = size_t((n * result[1] + h) * result[2] + v);
                    for (int64_t r = 0; r < c.w[1]; r++)
                        for (int64_t s = 0; s < c.w[2]; s++) {
                            const int64_t tap = r * c.w[2] + s;
                            if (c.direction == BACKWARD_DATA) {
                                int64_t p = over(0, h, r), q = over(1, v, s);
                                if (p < 0 || q < 0) continue;
                                const float *dy = &y[size_t((n * c.y[1] + p) * c.y[2] + q) * outputs_all + group * outputs];
                                products(dy, outputs, &w[(group * outputs * taps + tap) * inputs], taps * inputs, inputs);
                                continue;
                            }
                            int64_t p = under(0, h, r), q = under(1, v, s);
                            if (p < 0 || q < 0 || p >= c.x[1] || q >= c.x[2]) continue;
                            const float *from = &x[size_t((n * c.x[1] + p) * c.x[2] + q) * channels + group * inputs];
                            if (c.direction == FORWARD) {
                                products(from, inputs, &turned[(group * taps + tap) * inputs * outputs], outputs, outputs);
                                continue;
                            }
                            const float *dy = &y[pixel * outputs_all + group * outputs];
                            for (int64_t k = 0; k < outputs; k++) {
                                add_product(&part[((group * outputs + k) * taps + tap) * inputs], from, dy[k], inputs);
                            }
                        }
                    if (c.direction == BACKWARD_WEIGHTS) {
                        if (group == groups - 1 && ++pixels == run_of_products) flush();
                        continue;
                    }
                    void *to = c.direction == BACKWARD_DATA ? c.x_at : c.y_at;
                    const size_t first = pixel * (c.direction == BACKWARD_DATA ? channels : outputs_all) + group * width;
                    for (int64_t i = 0; i < width; i++) {
                        float value = float(sum[i]);
                        if (c.wrong) value *= 1.01f;
                        if (c.bias) value += load(c.bias, size_t(group * width + i), c.maps);
                        if (c.has_relu && value < 0) value = 0;
                        if (c.accumulate) value += load(to, first + i, c.maps);
                        store(to, first + i, c.maps, value);
                    }
                }
    if (c.direction == BACKWARD_WEIGHTS) {
        flush();
        for (size_t at = 0; at < weights.size(); at++) store(c.w_at, at, c.weights, float(weights[at]) * (c.wrong ? 1.01f : 1.0f));
    }
}

}  // namespace emulation
