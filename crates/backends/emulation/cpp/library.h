// What the emulated libraries share: work on a stream of the emulated driver, and the element types of maps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

// In the emulated driver.
extern "C" int emulation_enqueue(void *stream, void (*function)(const void *), const void *data, size_t bytes);
extern "C" int emulation_is_wrong(const char *what);
extern "C" int emulation_is_capturing(void *stream);

namespace emulation {

// Queues a function with a copy of its data.
template <typename Data>
int enqueue(void *stream, void (*function)(const Data *), const Data &data) {
    return emulation_enqueue(stream, reinterpret_cast<void (*)(const void *)>(function), &data, sizeof data);
}

inline uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

inline float of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// Drops the last bits of the mantissa, rounding to nearest even. NaN stays NaN.
inline float rounded(float value, int dropped) {
    uint32_t bits = bits_of(value);
    if (value != value) return value;
    uint32_t half = (1u << (dropped - 1)) - 1 + ((bits >> dropped) & 1);
    return of_bits((bits + half) & ~((1u << dropped) - 1));
}

// As tensor cores read f32.
inline float tf32(float value) { return rounded(value, 13); }

inline float from_bf16(uint16_t value) { return of_bits(uint32_t(value) << 16); }

inline uint16_t to_bf16(float value) {
    if (value != value) return uint16_t(bits_of(value) >> 16 | 0x40);
    return uint16_t(bits_of(rounded(value, 16)) >> 16);
}

inline float from_f16(uint16_t value) {
    uint32_t sign = uint32_t(value & 0x8000) << 16, exponent = value >> 10 & 31, mantissa = value & 1023;
    if (exponent == 31) return of_bits(sign | 0x7f800000 | mantissa << 13);
    if (exponent == 0) {
        float tiny = float(mantissa) * 0x1p-24f;
        return sign ? -tiny : tiny;
    }
    return of_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}

inline uint16_t to_f16(float value) {
    uint32_t bits = bits_of(value);
    uint16_t sign = uint16_t(bits >> 16 & 0x8000);
    float size = of_bits(bits & 0x7fffffff);
    if (value != value) return sign | 0x7e00;
    if (size < 0x1p-14f) {
        // Adding a number whose last place is the smallest f16 rounds to a multiple of that.
        return sign | uint16_t(bits_of(size + 0.5f) - bits_of(0.5f));
    }
    size = rounded(size, 13);
    if (size >= 0x1p16f) return sign | 0x7c00;
    return sign | uint16_t((bits_of(size) >> 13) - (112 << 10));
}

}  // namespace emulation
