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
KERNEL(multiply_f32, Pair<float>) { for_elements<float>(a.elements, EachPair<Product, float>{a}); }
KERNEL(multiply_bf16, Pair<bf16>) { for_elements<bf16>(a.elements, EachPair<Product, bf16>{a}); }
