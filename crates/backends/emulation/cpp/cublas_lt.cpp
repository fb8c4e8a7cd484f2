// cuBLASLt over host memory: the functions that enmasse uses, with their ABI, for column-major matrices. Sums are f64.
#include <algorithm>
#include <vector>

#include "library.h"

namespace {

enum Status { SUCCESS = 0, INVALID_VALUE = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };
enum Compute { F32 = 68, TF32 = 77 };

// The workspace that a product asks for, where the program allows as much.
const size_t WORKSPACE = 4096;

// CUDA's numbers of the element types.
enum Type { R32F = 0, R16F = 2, R16BF = 14 };

struct Layout {
    Type type;
    uint64_t rows, columns;
    int64_t leading;
};

struct Descriptor {
    Compute compute;
    int transposed[2] = {0, 0};
    int epilogue = 1;
    const void *bias = nullptr;
};

struct Preference {
    uint64_t workspace = 0;
    uint32_t schemes = 7, alignments[4] = {256, 256, 256, 256};
};

struct Algorithm {
    uint64_t id, needs, rest[6];
};

struct Proposal {
    Algorithm algorithm;
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};

struct Product {
    Layout a, b, d;
    Descriptor how;
    const void *a_at, *b_at;
    void *d_at;
    void *workspace;
    size_t workspace_bytes;
};

// Rows and columns of an operand once it is transposed.
uint64_t rows(const Layout &layout, int transposed) { return transposed ? layout.columns : layout.rows; }
uint64_t columns(const Layout &layout, int transposed) { return transposed ? layout.rows : layout.columns; }

bool matches(const Descriptor &how, const Layout &a, const Layout &b, const Layout &d) {
    return rows(a, how.transposed[0]) == d.rows && columns(b, how.transposed[1]) == d.columns &&
           columns(a, how.transposed[0]) == rows(b, how.transposed[1]);
}

// Factors have one type, and sums that or f32. A bias has the type of sums.
bool is_supported(const Descriptor &how, const Layout &a, const Layout &b, const Layout &c, const Layout &d) {
    return a.type == b.type && c.type == d.type && (d.type == a.type || d.type == R32F) &&
           (how.compute == F32 || a.type == R32F) && (how.epilogue == 1 || how.epilogue == 4);
}

float load(const void *from, uint64_t at, Type type) {
    if (type == R32F) return static_cast<const float *>(from)[at];
    uint16_t bits = static_cast<const uint16_t *>(from)[at];
    return type == R16BF ? emulation::from_bf16(bits) : emulation::from_f16(bits);
}

void store(void *to, uint64_t at, Type type, float value) {
    if (type == R32F) {
        static_cast<float *>(to)[at] = value;
    } else {
        static_cast<uint16_t *>(to)[at] = type == R16BF ? emulation::to_bf16(value) : emulation::to_f16(value);
    }
}

void run(const Product *product) {
    const Product &p = *product;
    if (p.workspace) memset(p.workspace, 0xff, p.workspace_bytes);
    auto read = [&](const void *from, const Layout &layout, int transposed, uint64_t row, uint64_t column) {
        if (transposed) std::swap(row, column);
        float value = load(from, row + column * uint64_t(layout.leading), layout.type);
        return p.how.compute == TF32 ? emulation::tf32(value) : value;
    };
    const uint64_t depth = columns(p.a, p.how.transposed[0]);
    std::vector<float> row(depth);
    for (uint64_t i = 0; i < p.d.rows; i++) {
        for (uint64_t k = 0; k < depth; k++) row[k] = read(p.a_at, p.a, p.how.transposed[0], i, k);
        for (uint64_t j = 0; j < p.d.columns; j++) {
            double sum = 0;
            for (uint64_t k = 0; k < depth; k++) sum += double(row[k]) * read(p.b_at, p.b, p.how.transposed[1], k, j);
            float value = float(sum);
            if (p.how.epilogue == 4) value += load(p.how.bias, i, p.d.type);
            store(p.d_at, i + j * uint64_t(p.d.leading), p.d.type, value);
        }
    }
}

template <typename T>
int set(T &to, const void *value, size_t bytes) {
    if (!value || bytes != sizeof to) return INVALID_VALUE;
    memcpy(&to, value, bytes);
    return SUCCESS;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

size_t cublasLtGetVersion() { return 120901; }

const char *cublasLtGetStatusName(int status) {
    switch (status) {
        case SUCCESS: return "CUBLAS_STATUS_SUCCESS";
        case INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
        case EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
        case NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
        default: return "CUBLAS_STATUS_UNKNOWN";
    }
}

int cublasLtCreate(int **handle) {
    if (!handle) return INVALID_VALUE;
    *handle = new int;
    return SUCCESS;
}

int cublasLtDestroy(int *handle) {
    delete handle;
    return SUCCESS;
}

int cublasLtMatmulDescCreate(Descriptor **descriptor, int compute, int scale) {
    if (!descriptor) return INVALID_VALUE;
    if ((compute != F32 && compute != TF32) || scale != 0) return NOT_SUPPORTED;
    *descriptor = new Descriptor{Compute(compute)};
    return SUCCESS;
}

int cublasLtMatmulDescDestroy(Descriptor *descriptor) {
    delete descriptor;
    return SUCCESS;
}

int cublasLtMatmulDescSetAttribute(Descriptor *descriptor, int attribute, const void *value, size_t bytes) {
    if (!descriptor) return INVALID_VALUE;
    switch (attribute) {
        case 3: return set(descriptor->transposed[0], value, bytes);
        case 4: return set(descriptor->transposed[1], value, bytes);
        case 7: return set(descriptor->epilogue, value, bytes);
        case 8: return set(descriptor->bias, value, bytes);
        default: return INVALID_VALUE;
    }
}

int cublasLtMatrixLayoutCreate(Layout **layout, int type, uint64_t rows, uint64_t columns, int64_t leading) {
    if (!layout || leading < int64_t(rows)) return INVALID_VALUE;
    if (type != R32F && type != R16F && type != R16BF) return NOT_SUPPORTED;
    *layout = new Layout{Type(type), rows, columns, leading};
    return SUCCESS;
}

int cublasLtMatrixLayoutDestroy(Layout *layout) {
    delete layout;
    return SUCCESS;
}

int cublasLtMatmulPreferenceCreate(Preference **preference) {
    if (!preference) return INVALID_VALUE;
    *preference = new Preference;
    return SUCCESS;
}

int cublasLtMatmulPreferenceDestroy(Preference *preference) {
    delete preference;
    return SUCCESS;
}

int cublasLtMatmulPreferenceSetAttribute(Preference *preference, int attribute, const void *value, size_t bytes) {
    if (!preference) return INVALID_VALUE;
    switch (attribute) {
        case 1: return set(preference->workspace, value, bytes);
        case 3: return set(preference->schemes, value, bytes);
        case 5: case 6: case 7: case 8: return set(preference->alignments[attribute - 5], value, bytes);
        default: return INVALID_VALUE;
    }
}

int cublasLtMatmulAlgoGetHeuristic(void *handle, Descriptor *how, Layout *a, Layout *b, Layout *c, Layout *d, Preference *preference,
                                   int most, Proposal *proposals, int *count) {
    if (!handle || !how || !a || !b || !c || !d || !preference || !proposals || !count || most < 1) return INVALID_VALUE;
    *count = 0;
    if (!matches(*how, *a, *b, *d) || !matches(*how, *a, *b, *c) || !d->rows || !d->columns) return INVALID_VALUE;
    if (!is_supported(*how, *a, *b, *c, *d)) return NOT_SUPPORTED;
    size_t workspace = preference->workspace >= WORKSPACE ? WORKSPACE : 0;
    proposals[0] = {{workspace ? 1u : 0u, workspace, {}}, workspace, SUCCESS, 1, {}};
    *count = 1;
    return SUCCESS;
}

int cublasLtMatmulAlgoConfigGetAttribute(const Algorithm *algorithm, int attribute, void *value, size_t bytes, size_t *written) {
    if (!algorithm || !value || bytes < 4) return INVALID_VALUE;
    const uint32_t number = attribute == 0 ? uint32_t(algorithm->id) : attribute == 2 ? 1 : 0;
    memcpy(value, &number, 4);
    if (written) *written = 4;
    return SUCCESS;
}

int cublasLtMatmul(void *handle, Descriptor *how, const float *alpha, const void *a_at, Layout *a, const void *b_at, Layout *b,
                   const float *beta, const void *c_at, Layout *c, void *d_at, Layout *d, const Algorithm *algorithm,
                   void *workspace, size_t bytes, void *stream) {
    if (!handle || !how || !alpha || !a_at || !a || !b_at || !b || !beta || !c_at || !c || !d_at || !d || !algorithm) return INVALID_VALUE;
    for (const void *address : {a_at, b_at, (const void *)d_at, (const void *)workspace})
        if (reinterpret_cast<uintptr_t>(address) % 16) return INVALID_VALUE;
    if (!matches(*how, *a, *b, *d)) return INVALID_VALUE;
    if (*alpha != 1 || *beta != 0 || !is_supported(*how, *a, *b, *c, *d)) return NOT_SUPPORTED;
    if (how->epilogue == 4 && !how->bias) return INVALID_VALUE;
    if (algorithm->needs && (!workspace || bytes < algorithm->needs)) return INVALID_VALUE;
    Product product = {*a, *b, *d, *how, a_at, b_at, d_at, algorithm->needs ? workspace : nullptr, size_t(algorithm->needs)};
    return emulation::enqueue(stream, run, product) ? EXECUTION_FAILED : SUCCESS;
}

}  // extern "C"
#pragma GCC visibility pop
