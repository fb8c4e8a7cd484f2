// Expressions at each element: a formula, step by step. Its registers are memory of the thread.
#include "element.h"

// As in `steps`, `unary` and `binary` of pointwise.rs.
enum Code {
    LOAD, STORE, CONSTANT, NEGATE, ABS, EXP, LOG, TANH, ERF, SIGMOID, SQRT,
    ADD, SUBTRACT, MULTIPLY, DIVIDE, MINIMUM, MAXIMUM, POWER, WHERE
};

// A code and registers, one byte each, from the lowest: the code, the result, and up to four operands, of which the third is the
// number of what is loaded. And a number.
struct Step {
    uint32_t code_to_a_b;
    uint32_t x_y;
    float number;
};

template <class E> struct Pointwise {
    const E *operands[8];
    E *results[8];
    uint64_t elements;
    uint32_t count;
    Step steps[136];
};

template <class E> __device__ __forceinline__ void pointwise(const Pointwise<E> &formula, uint64_t index) {
    float registers[32];
    // Steps without operands look at it.
    registers[0] = 0.0f;
    for (uint32_t i = 0; i < formula.count; i++) {
        const Step step = formula.steps[i];
        const uint32_t to = step.code_to_a_b >> 8 & 0xffu, x = step.x_y & 0xffu, y = step.x_y >> 8;
        const float a = registers[step.code_to_a_b >> 16 & 0xffu], b = registers[step.code_to_a_b >> 24];
        float value;
        switch (step.code_to_a_b & 0xffu) {
            case LOAD: value = to_float(formula.operands[x][index]); break;
            case STORE: from_float(a, formula.results[to][index]); continue;
            case CONSTANT: value = step.number; break;
            case NEGATE: value = -a; break;
            case ABS: value = fabsf(a); break;
            case EXP: value = expf(a); break;
            case LOG: value = logf(a); break;
            case TANH: value = tanhf(a); break;
            case ERF: value = erff(a); break;
            case SIGMOID: value = 1.0f / (1.0f + expf(-a)); break;
            case SQRT: value = sqrtf(a); break;
            case ADD: value = a + b; break;
            case SUBTRACT: value = a - b; break;
            case MULTIPLY: value = a * b; break;
            case DIVIDE: value = a / b; break;
            // NaN stays NaN, whichever it is.
            case MINIMUM: value = b < a || b != b ? b : a; break;
            case MAXIMUM: value = b > a || b != b ? b : a; break;
            case POWER: value = powf(a, step.number); break;
            default: value = registers[a > b ? x : y];
        }
        registers[to] = value;
    }
}

template <class E> __device__ __forceinline__ void each(const Pointwise<E> &formula) {
    uint64_t threads = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t index = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; index < formula.elements; index += threads)
        pointwise(formula, index);
}

KERNEL(pointwise_f32, Pointwise<float>) { each(a); }
KERNEL(pointwise_bf16, Pointwise<bf16>) { each(a); }
KERNEL(pointwise_f16, Pointwise<f16>) { each(a); }
