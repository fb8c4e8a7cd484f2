// Functions of one number, and their gradients.
#include "element.h"

// As in `code` of function.rs.
enum Function { AFFINE, EXP, LOG, POWER, CLAMP_MIN, SIGMOID, SILU, GELU, HARD_SWISH };

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// exp(-|x|) / (1 + exp(-|x|))^2, which has its digits also where the sigmoid is 1.
__device__ __forceinline__ float sigmoid_derivative(float x) {
    float exp = expf(-fabsf(x));
    return exp / ((1.0f + exp) * (1.0f + exp));
}

// P(X <= x) for a standard normal X.
__device__ __forceinline__ float normal_distribution(float x) { return 0.5f * erfcf(-0.70710678f * x); }

__device__ __forceinline__ float value(uint32_t function, float first, float second, float x) {
    switch (function) {
        case AFFINE: return fmaf(first, x, second);
        case EXP: return expf(x);
        case LOG: return logf(x);
        case POWER: return powf(x, first);
        case SIGMOID: return sigmoid(x);
        case SILU: return x * sigmoid(x);
        case GELU: return x * normal_distribution(x);
        case HARD_SWISH: return x * (rectified(x + 3.0f, 0.0f, 6.0f) * (1.0f / 6.0f));
        // NaN stays NaN.
        default: return x < first ? first : x;
    }
}

__device__ __forceinline__ float derivative(uint32_t function, float first, float x) {
    switch (function) {
        case AFFINE: return first;
        case EXP: return expf(x);
        case LOG: return 1.0f / x;
        // Of the power 0 it is 0 also at 0, where the formula has no value.
        case POWER: return first == 0.0f ? 0.0f : first * powf(x, first - 1.0f);
        case SIGMOID: return sigmoid_derivative(x);
        case SILU: return fmaf(x, sigmoid_derivative(x), sigmoid(x));
        // The density is 1 / sqrt(2 pi) at 0.
        case GELU: return fmaf(x * 0.39894228f, expf(-0.5f * x * x), normal_distribution(x));
        case HARD_SWISH: return x >= 3.0f ? 1.0f : x > -3.0f ? fmaf(x, 1.0f / 3.0f, 0.5f) : 0.0f;
        default: return x >= first ? 1.0f : 0.0f;
    }
}

template <class E> struct Map {
    const E *x;
    E *y;
    uint64_t elements;
    uint32_t function;
    float first, second;
};

template <class E> __device__ __forceinline__ void map(const Map<E> &a) {
    uint64_t threads = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t index = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; index < a.elements; index += threads)
        from_float(value(a.function, a.first, a.second, to_float(a.x[index])), a.y[index]);
}

KERNEL(map_f32, Map<float>) { map(a); }
KERNEL(map_bf16, Map<bf16>) { map(a); }
KERNEL(map_f16, Map<f16>) { map(a); }

template <class E> struct MapBackward {
    const E *dy;
    const E *x;
    E *dx;
    uint64_t elements;
    uint32_t function;
    float first;
};

template <class E> __device__ __forceinline__ void map_backward(const MapBackward<E> &a) {
    uint64_t threads = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t index = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; index < a.elements; index += threads)
        from_float(to_float(a.dy[index]) * derivative(a.function, a.first, to_float(a.x[index])), a.dx[index]);
}

KERNEL(map_backward_f32, MapBackward<float>) { map_backward(a); }
KERNEL(map_backward_bf16, MapBackward<bf16>) { map_backward(a); }
KERNEL(map_backward_f16, MapBackward<f16>) { map_backward(a); }
