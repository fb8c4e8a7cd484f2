// Images: from bytes to the numbers that the first layer takes.
#include "element.h"

template <class E> struct Normalize {
    const uint8_t *images;  // [pixels, 3]
    E *y;                   // [pixels, 3], or [pixels, 1] by the next kernel
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
