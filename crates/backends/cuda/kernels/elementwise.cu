// Passes over all elements of maps or matrices.
#include "element.h"

template <class E> struct Pair {
    const E *a;
    const E *b;
    E *c;
    uint64_t elements;
};

struct Sum {
    __device__ __forceinline__ static float of(float a, float b) { return a + b; }
};

struct Product {
    __device__ __forceinline__ static float of(float a, float b) { return a * b; }
};

template <class Operation, class E> struct EachPair {
    Pair<E> a;
    template <int N> __device__ __forceinline__ void at(uint64_t index) const {
        float x[N], y[N];
        load(a.a, index, x);
        load(a.b, index, y);
#pragma unroll
        for (int i = 0; i < N; i++) x[i] = Operation::of(x[i], y[i]);
        store(a.c, index, x);
    }
};

KERNEL(add_f32, Pair<float>) { for_elements<float>(a.elements, EachPair<Sum, float>{a}); }
KERNEL(add_bf16, Pair<bf16>) { for_elements<bf16>(a.elements, EachPair<Sum, bf16>{a}); }
KERNEL(add_f16, Pair<f16>) { for_elements<f16>(a.elements, EachPair<Sum, f16>{a}); }
KERNEL(multiply_f32, Pair<float>) { for_elements<float>(a.elements, EachPair<Product, float>{a}); }
KERNEL(multiply_bf16, Pair<bf16>) { for_elements<bf16>(a.elements, EachPair<Product, bf16>{a}); }
KERNEL(multiply_f16, Pair<f16>) { for_elements<f16>(a.elements, EachPair<Product, f16>{a}); }

template <class E> struct Rectify {
    const E *x;
    E *y;
    uint64_t elements;
    float ceiling;
};

template <class E> struct EachRectify {
    Rectify<E> a;
    template <int N> __device__ __forceinline__ void at(uint64_t index) const {
        float x[N];
        load(a.x, index, x);
#pragma unroll
        for (int i = 0; i < N; i++) x[i] = rectified(x[i], 0.0f, a.ceiling);
        store(a.y, index, x);
    }
};

template <class E> struct RectifyBackward {
    const E *dy;
    const E *y;
    E *dx;
    uint64_t elements;
    float ceiling;
};

template <class E> struct EachRectifyBackward {
    RectifyBackward<E> a;
    template <int N> __device__ __forceinline__ void at(uint64_t index) const {
        float dy[N], y[N];
        load(a.dy, index, dy);
        load(a.y, index, y);
#pragma unroll
        for (int i = 0; i < N; i++) dy[i] = passes(y[i], a.ceiling) ? dy[i] : 0.0f;
        store(a.dx, index, dy);
    }
};

KERNEL(rectify_f32, Rectify<float>) { for_elements<float>(a.elements, EachRectify<float>{a}); }
KERNEL(rectify_bf16, Rectify<bf16>) { for_elements<bf16>(a.elements, EachRectify<bf16>{a}); }
KERNEL(rectify_f16, Rectify<f16>) { for_elements<f16>(a.elements, EachRectify<f16>{a}); }
KERNEL(rectify_backward_f32, RectifyBackward<float>) { for_elements<float>(a.elements, EachRectifyBackward<float>{a}); }
KERNEL(rectify_backward_bf16, RectifyBackward<bf16>) { for_elements<bf16>(a.elements, EachRectifyBackward<bf16>{a}); }
KERNEL(rectify_backward_f16, RectifyBackward<f16>) { for_elements<f16>(a.elements, EachRectifyBackward<f16>{a}); }

template <class From, class To> struct Cast {
    const From *x;
    To *y;
    uint64_t elements;
};

template <class From, class To> struct EachCast {
    Cast<From, To> a;
    template <int N> __device__ __forceinline__ void at(uint64_t index) const {
        float x[N];
        load(a.x, index, x);
        store(a.y, index, x);
    }
};

template <class E> using Narrow = EachCast<float, E>;
template <class E> using Widen = EachCast<E, float>;

// Four at a time, which are 16 bytes of f32.
KERNEL(cast_f32_to_bf16, decltype(Narrow<bf16>::a)) { for_elements<float>(a.elements, Narrow<bf16>{a}); }
KERNEL(cast_f32_to_f16, decltype(Narrow<f16>::a)) { for_elements<float>(a.elements, Narrow<f16>{a}); }
KERNEL(cast_bf16_to_f32, decltype(Widen<bf16>::a)) { for_elements<float>(a.elements, Widen<bf16>{a}); }
KERNEL(cast_f16_to_f32, decltype(Widen<f16>::a)) { for_elements<float>(a.elements, Widen<f16>{a}); }

// The same of several ranges. A row of blocks takes one.
const uint32_t RANGES = 32;

template <class E> struct Ranges {
    const E *x[RANGES];
    float *y[RANGES];
    uint64_t elements[RANGES];
};

template <class E> __device__ __forceinline__ void widen_ranges(const Ranges<E> &a) {
    uint64_t elements = a.elements[blockIdx.y];
    for_elements<float>(elements, Widen<E>{{a.x[blockIdx.y], a.y[blockIdx.y], elements}});
}

KERNEL(cast_ranges_bf16_to_f32, Ranges<bf16>) { widen_ranges(a); }
KERNEL(cast_ranges_f16_to_f32, Ranges<f16>) { widen_ranges(a); }
