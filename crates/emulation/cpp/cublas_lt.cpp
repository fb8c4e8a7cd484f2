// NVIDIA's cuBLASLt over host memory: products of f32 matrices, with the ABI of the functions that enmasse uses.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>

// In the emulated driver.
extern "C" int emulation_enqueue(void *stream, void (*function)(const void *), const void *data, size_t bytes);

namespace {

enum Status { SUCCESS = 0, NOT_INITIALIZED = 1, INVALID_VALUE = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };

// Column-major: element (r, c) is at r + c * stride.
struct Layout {
    int type;
    uint64_t rows, columns;
    int64_t stride;
};

struct Description {
    int compute, scale;
    int transpose[2];
    uint32_t epilogue;
    const float *bias;
};

struct Preference {
    uint64_t workspace;
    uint32_t reductions;
    uint32_t alignment[4];
};

struct HeuristicResult {
    uint64_t algorithm[8];
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};

// What marks an algorithm that the heuristic has given out.
const uint64_t ALGORITHM = 0x656d756c61746564;
const size_t WORKSPACE = 256;

struct Product {
    Description description;
    Layout a, b, d;
    const float *from_a, *from_b;
    float *to;
    char *workspace;
};

// The shape after the transposition.
void shape(const Layout &layout, int transpose, uint64_t &rows, uint64_t &columns) {
    rows = transpose ? layout.columns : layout.rows;
    columns = transpose ? layout.rows : layout.columns;
}

bool fits(const Description &description, const Layout &a, const Layout &b, const Layout &d) {
    uint64_t rows, inner, other, columns;
    shape(a, description.transpose[0], rows, inner);
    shape(b, description.transpose[1], other, columns);
    for (const Layout *layout : {&a, &b, &d})
        if (layout->type != 0 || layout->stride < int64_t(layout->rows)) return false;
    bool computes = description.compute == 68 || description.compute == 77;
    bool has_bias = description.epilogue == 4 && description.bias;
    return computes && description.scale == 0 && (has_bias || description.epilogue == 1) && inner == other && d.rows == rows && d.columns == columns;
}

void multiply(const void *data) {
    const Product &p = *static_cast<const Product *>(data);
    uint64_t rows, inner, columns;
    shape(p.a, p.description.transpose[0], rows, inner);
    columns = p.d.columns;
    for (uint64_t c = 0; c < columns; c++)
        for (uint64_t r = 0; r < rows; r++) {
            double sum = 0;
            for (uint64_t k = 0; k < inner; k++) {
                uint64_t a = p.description.transpose[0] ? k + r * p.a.stride : r + k * p.a.stride;
                uint64_t b = p.description.transpose[1] ? c + k * p.b.stride : k + c * p.b.stride;
                sum += double(p.from_a[a]) * double(p.from_b[b]);
            }
            // The bias has an element for each row.
            if (p.description.epilogue == 4) sum += double(p.description.bias[r]);
            p.to[r + c * p.d.stride] = float(sum);
        }
    // It is the algorithm's, and holds nothing afterwards.
    memset(p.workspace, 0xff, WORKSPACE);
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

size_t cublasLtGetVersion() { return 120800; }

const char *cublasLtGetStatusName(int status) {
    switch (status) {
    case SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    default: return "CUBLAS_STATUS_EXECUTION_FAILED";
    }
}

int cublasLtCreate(void **handle) {
    *handle = new char;
    return SUCCESS;
}

int cublasLtDestroy(void *handle) {
    delete static_cast<char *>(handle);
    return SUCCESS;
}

int cublasLtMatmulDescCreate(void **made, int compute, int scale) {
    *made = new Description{compute, scale, {0, 0}, 1, nullptr};
    return SUCCESS;
}

int cublasLtMatmulDescDestroy(void *description) {
    delete static_cast<Description *>(description);
    return SUCCESS;
}

int cublasLtMatmulDescSetAttribute(void *description, int attribute, const void *value, size_t bytes) {
    auto *to = static_cast<Description *>(description);
    auto set = [&](void *place, size_t size) {
        if (bytes != size) return int(INVALID_VALUE);
        memcpy(place, value, bytes);
        return int(SUCCESS);
    };
    switch (attribute) {
    case 3:
    case 4: return set(&to->transpose[attribute - 3], sizeof(int));
    case 7: return set(&to->epilogue, sizeof(to->epilogue));
    case 8: return set(&to->bias, sizeof(to->bias));
    default: return INVALID_VALUE;
    }
}

int cublasLtMatrixLayoutCreate(void **made, int type, uint64_t rows, uint64_t columns, int64_t stride) {
    *made = new Layout{type, rows, columns, stride};
    return SUCCESS;
}

int cublasLtMatrixLayoutDestroy(void *layout) {
    delete static_cast<Layout *>(layout);
    return SUCCESS;
}

int cublasLtMatmulPreferenceCreate(void **made) {
    *made = new Preference{0, 7, {256, 256, 256, 256}};
    return SUCCESS;
}

int cublasLtMatmulPreferenceDestroy(void *preference) {
    delete static_cast<Preference *>(preference);
    return SUCCESS;
}

int cublasLtMatmulPreferenceSetAttribute(void *handle, int attribute, const void *value, size_t bytes) {
    auto *preference = static_cast<Preference *>(handle);
    if (attribute == 1 && bytes == sizeof(uint64_t)) {
        memcpy(&preference->workspace, value, bytes);
    } else if (attribute == 3 && bytes == sizeof(uint32_t)) {
        memcpy(&preference->reductions, value, bytes);
    } else if (attribute >= 5 && attribute <= 8 && bytes == sizeof(uint32_t)) {
        memcpy(&preference->alignment[attribute - 5], value, bytes);
    } else {
        return INVALID_VALUE;
    }
    return SUCCESS;
}

int cublasLtMatmulAlgoGetHeuristic(void *handle, void *description, void *a, void *b, void *c, void *d, void *preference,
                                   int most, HeuristicResult *results, int *found) {
    if (!handle || c != d || most < 1) return INVALID_VALUE;
    *found = 0;
    const auto &asked = *static_cast<Description *>(description);
    if (!fits(asked, *static_cast<Layout *>(a), *static_cast<Layout *>(b), *static_cast<Layout *>(d))) return NOT_SUPPORTED;
    const auto &preferred = *static_cast<Preference *>(preference);
    // In place, sums of parts would depend on who comes first.
    if (preferred.workspace < WORKSPACE || preferred.reductions & 1) return NOT_SUPPORTED;
    for (uint32_t alignment : preferred.alignment)
        if (alignment != 16) return NOT_SUPPORTED;
    *results = {};
    results->algorithm[0] = ALGORITHM;
    results->workspace = WORKSPACE;
    *found = 1;
    return SUCCESS;
}

int cublasLtMatmulAlgoConfigGetAttribute(const uint64_t *algorithm, int attribute, void *value, size_t bytes, size_t *written) {
    if (algorithm[0] != ALGORITHM || bytes != sizeof(uint32_t)) return INVALID_VALUE;
    uint32_t number = uint32_t(attribute) + 1;
    memcpy(value, &number, bytes);
    *written = bytes;
    return SUCCESS;
}

int cublasLtMatmul(void *handle, void *description, const void *alpha, const void *a, void *a_layout, const void *b,
                   void *b_layout, const void *beta, const void *c, void *c_layout, void *d, void *d_layout,
                   const uint64_t *algorithm, void *workspace, size_t bytes, void *stream) {
    const float one = 1, zero = 0;
    Product product{*static_cast<Description *>(description), *static_cast<Layout *>(a_layout),
                    *static_cast<Layout *>(b_layout),         *static_cast<Layout *>(d_layout),
                    static_cast<const float *>(a),            static_cast<const float *>(b),
                    static_cast<float *>(d),                  static_cast<char *>(workspace)};
    for (uintptr_t address : {uintptr_t(a), uintptr_t(b), uintptr_t(d), uintptr_t(workspace)})
        if (address % 16) return INVALID_VALUE;
    if (!handle || c != d || c_layout != d_layout || memcmp(alpha, &one, 4) || memcmp(beta, &zero, 4)) return INVALID_VALUE;
    if (algorithm[0] != ALGORITHM || bytes < WORKSPACE || !workspace) return INVALID_VALUE;
    if (!fits(product.description, product.a, product.b, product.d)) return INVALID_VALUE;
    return emulation_enqueue(stream, multiply, &product, sizeof(product)) == 0 ? SUCCESS : EXECUTION_FAILED;
}

}  // extern "C"
#pragma GCC visibility pop
