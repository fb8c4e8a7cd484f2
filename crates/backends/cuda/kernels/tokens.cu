// Tokens that all samples share, and some of the tokens of each sample. A thread has one element of the result at a time.
#include "element.h"

// Calls `each(sample, at)` with the sample of every element of `elements`, and its place among the `piece` elements of it.
template <class Each> __device__ __forceinline__ void for_samples(uint64_t elements, uint64_t piece, Each each) {
    const uint64_t threads = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t index = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; index < elements; index += threads)
        each(index / piece, index % piece);
}

template <class E> struct Add {
    const E *x;           // [samples, piece]
    const float *tokens;  // [piece]
    E *y;                 // [samples, piece]
    uint64_t elements, piece;
};

template <class E> __device__ __forceinline__ void add(const Add<E> &a) {
    for_samples(a.elements, a.piece, [&](uint64_t sample, uint64_t at) {
        const uint64_t index = sample * a.piece + at;
        from_float(to_float(a.x[index]) + a.tokens[at], a.y[index]);
    });
}

KERNEL(add_tokens_f32, Add<float>) { add(a); }
KERNEL(add_tokens_bf16, Add<bf16>) { add(a); }
KERNEL(add_tokens_f16, Add<f16>) { add(a); }

template <class E> struct Prepend {
    const E *x;           // [samples, piece - count]
    const float *tokens;  // [count]
    E *y;                 // [samples, piece]
    uint64_t elements, piece, count;
};

template <class E> __device__ __forceinline__ void prepend(const Prepend<E> &a) {
    for_samples(a.elements, a.piece, [&](uint64_t sample, uint64_t at) {
        E &y = a.y[sample * a.piece + at];
        if (at < a.count) from_float(a.tokens[at], y);
        else y = a.x[sample * (a.piece - a.count) + at - a.count];
    });
}

KERNEL(prepend_tokens_f32, Prepend<float>) { prepend(a); }
KERNEL(prepend_tokens_bf16, Prepend<bf16>) { prepend(a); }
KERNEL(prepend_tokens_f16, Prepend<f16>) { prepend(a); }

template <class E> struct Sum {
    const E *dy;  // [samples, piece]
    float *sums;  // [count]
    uint64_t count, samples, piece;
};

// In the order of samples.
template <class E> __device__ __forceinline__ void sum(const Sum<E> &a) {
    for_samples(a.count, a.count, [&](uint64_t, uint64_t at) {
        float sum = 0.0f;
        for (uint64_t sample = 0; sample < a.samples; sample++) sum += to_float(a.dy[sample * a.piece + at]);
        a.sums[at] = sum;
    });
}

KERNEL(sum_tokens_f32, Sum<float>) { sum(a); }
KERNEL(sum_tokens_bf16, Sum<bf16>) { sum(a); }
KERNEL(sum_tokens_f16, Sum<f16>) { sum(a); }

template <class E> struct Select {
    const E *x;  // [samples, piece]
    E *y;        // [samples, count]
    uint64_t elements, count, piece, first;
};

template <class E> __device__ __forceinline__ void select(const Select<E> &a) {
    for_samples(a.elements, a.count, [&](uint64_t sample, uint64_t at) {
        a.y[sample * a.count + at] = a.x[sample * a.piece + a.first + at];
    });
}

KERNEL(select_tokens_f32, Select<float>) { select(a); }
KERNEL(select_tokens_bf16, Select<bf16>) { select(a); }
KERNEL(select_tokens_f16, Select<f16>) { select(a); }

template <class E> struct SelectBackward {
    const E *dy;  // [samples, count]
    E *dx;        // [samples, piece]
    uint64_t elements, piece, count, first;
};

template <class E> __device__ __forceinline__ void select_backward(const SelectBackward<E> &a) {
    for_samples(a.elements, a.piece, [&](uint64_t sample, uint64_t at) {
        E &dx = a.dx[sample * a.piece + at];
        if (at >= a.first && at - a.first < a.count) dx = a.dy[sample * a.count + at - a.first];
        else from_float(0.0f, dx);
    });
}

KERNEL(select_tokens_backward_f32, SelectBackward<float>) { select_backward(a); }
KERNEL(select_tokens_backward_bf16, SelectBackward<bf16>) { select_backward(a); }
KERNEL(select_tokens_backward_f16, SelectBackward<f16>) { select_backward(a); }
