// Dropout and drop path, by the random numbers of crates/core/tensor/src/random.rs: the same bits on every device.
#include "element.h"

struct Words {
    uint32_t of[4];
};

// One block of Philox4x32-10.
__device__ __forceinline__ Words philox(uint32_t k0, uint32_t k1, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3) {
#pragma unroll
    for (int round = 0; round < 10; round++) {
        uint32_t low0 = 0xD2511F53u * c0, high0 = __umulhi(0xD2511F53u, c0);
        uint32_t low1 = 0xCD9E8D57u * c2, high1 = __umulhi(0xCD9E8D57u, c2);
        c0 = high1 ^ c1 ^ k0;
        c1 = low1;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
}

template <class E> struct Dropout {
    const E *x;                      // [samples, elements]
    const uint64_t *sample_indices;  // [samples]
    const StepValues *step;
    E *y;                            // [samples, elements]
    uint64_t elements;               // of a sample
    uint64_t blocks;                 // of four elements, of all samples
    uint32_t key0, key1;
    float probability;
    float factor;                    // of what is kept
    uint32_t per_sample;             // whether a sample's first word decides about all of it
};

// Each thread has the four elements whose words are in one block of random numbers.
template <class E> __device__ __forceinline__ void dropout(const Dropout<E> &a) {
    uint64_t of_sample = (a.elements + 3) / 4;
    uint64_t threads = (uint64_t)gridDim.x * blockDim.x;
    uint32_t epoch = (uint32_t)a.step->epoch;
    for (uint64_t block = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; block < a.blocks; block += threads) {
        uint64_t sample = block / of_sample;
        uint64_t within = block % of_sample;
        uint64_t index = a.sample_indices[sample];
        Words words = philox(a.key0, a.key1, a.per_sample ? 0 : (uint32_t)within, epoch, (uint32_t)index, (uint32_t)(index >> 32));
        float factors[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float unit = (float)(words.of[a.per_sample ? 0 : i] >> 8) * (1.0f / 16777216.0f);
            factors[i] = unit >= a.probability ? a.factor : 0.0f;
        }
        uint64_t first = sample * a.elements + within * 4;
        if (a.elements % 4 == 0) {
            float x[4];
            load(a.x, first, x);
#pragma unroll
            for (int i = 0; i < 4; i++) x[i] = factors[i] == 0.0f ? 0.0f : x[i] * factors[i];
            store(a.y, first, x);
        } else {
            for (uint32_t i = 0; i < 4 && within * 4 + i < a.elements; i++)
                from_float(factors[i] == 0.0f ? 0.0f : to_float(a.x[first + i]) * factors[i], a.y[first + i]);
        }
    }
}

KERNEL(dropout_f32, Dropout<float>) { dropout(a); }
KERNEL(dropout_bf16, Dropout<bf16>) { dropout(a); }
KERNEL(dropout_f16, Dropout<f16>) { dropout(a); }
