// Images: from bytes to the numbers that the first layer takes.
#include "element.h"

template <class E> struct Normalize {
    const uint8_t *images;  // [pixels, 3]
    E *y;                   // [pixels, 3], or other channels by the next kernels
    uint64_t elements;      // of y
    float scale0, scale1, scale2;
    float shift0, shift1, shift2;
};

template <class E> struct EachColour {
    Normalize<E> a;
    template <int N> __device__ __forceinline__ void at(uint64_t index) const {
        Packet<uint8_t, N> bytes = fetch<N>(a.images, index);
        uint32_t channel = (uint32_t)(index % 3);
        float y[N];
#pragma unroll
        for (int i = 0; i < N; i++) {
            float scale = channel == 0 ? a.scale0 : channel == 1 ? a.scale1 : a.scale2;
            float shift = channel == 0 ? a.shift0 : channel == 1 ? a.shift1 : a.shift2;
            y[i] = fmaf((float)bytes.at[i], scale, shift);
            channel = channel == 2 ? 0 : channel + 1;
        }
        store(a.y, index, y);
    }
};

KERNEL(normalize_f32, Normalize<float>) { for_elements<float>(a.elements, EachColour<float>{a}); }
KERNEL(normalize_bf16, Normalize<bf16>) { for_elements<bf16>(a.elements, EachColour<bf16>{a}); }
KERNEL(normalize_f16, Normalize<f16>) { for_elements<f16>(a.elements, EachColour<f16>{a}); }

// The images' first channel alone.
template <class E> struct EachGrey {
    Normalize<E> a;
    template <int N> __device__ __forceinline__ void at(uint64_t index) const {
        float y[N];
#pragma unroll
        for (int i = 0; i < N; i++) y[i] = fmaf((float)a.images[(index + i) * 3], a.scale0, a.shift0);
        store(a.y, index, y);
    }
};

KERNEL(normalize_grey_f32, Normalize<float>) { for_elements<float>(a.elements, EachGrey<float>{a}); }
KERNEL(normalize_grey_bf16, Normalize<bf16>) { for_elements<bf16>(a.elements, EachGrey<bf16>{a}); }
KERNEL(normalize_grey_f16, Normalize<f16>) { for_elements<f16>(a.elements, EachGrey<f16>{a}); }

// The same channels, and zeros up to 8, which are 16 bytes of 16-bit elements. Of a channel that is zero, both factors are.
template <class E> __device__ __forceinline__ void normalize_padded(const Normalize<E> &a) {
    const int CHANNELS = 8;
    uint64_t threads = (uint64_t)gridDim.x * blockDim.x, pixels = a.elements / CHANNELS;
    for (uint64_t pixel = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; pixel < pixels; pixel += threads) {
        const uint8_t *image = a.images + pixel * 3;
        float y[CHANNELS] = {};
        y[0] = fmaf((float)image[0], a.scale0, a.shift0);
        y[1] = fmaf((float)image[1], a.scale1, a.shift1);
        y[2] = fmaf((float)image[2], a.scale2, a.shift2);
        store(a.y, pixel * CHANNELS, y);
    }
}

KERNEL(normalize_padded_bf16, Normalize<bf16>) { normalize_padded(a); }
KERNEL(normalize_padded_f16, Normalize<f16>) { normalize_padded(a); }
