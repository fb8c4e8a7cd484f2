// NVIDIA's cuDNN 9 over host memory: convolutions by the backend API, with the ABI of the functions that enmasse uses.
//
// Attributes are checked as cuDNN checks them: by type, before a descriptor is finalized, and all that it needs. What engines
// take is chosen so that callers meet every case: an engine that they must not use comes first, gradients of weights are not
// written as f32 from 16-bit maps, and some graphs with a bias or with a sum are refused.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <map>
#include <set>
#include <string>
#include <vector>

// In the emulated driver.
extern "C" int emulation_enqueue(void *stream, void (*function)(const void *), const void *data, size_t bytes);

namespace {

enum Status { SUCCESS = 0, BAD_PARAM = 2000, NOT_FINALIZED = 2001, NOT_SUPPORTED = 3000, EXECUTION_FAILED = 5000 };

enum Kind {
    POINTWISE = 0, CONVOLUTION = 1, ENGINE = 2, CONFIGURATION = 3, HEURISTICS = 4, PLAN = 5, KNOB = 7, FORWARD = 10,
    BACKWARD_FILTER = 11, BACKWARD_DATA = 12, ADDITION = 13, GRAPH = 15, PACK = 16, TENSOR = 17,
};

enum DataType { F32 = 0, F16 = 2, BF16 = 9 };

// What an attribute of a kind of descriptor holds.
struct Rule {
    int kind, attribute, type;
    // How many elements there must be; 0 for any number.
    int64_t count;
    bool required;
};

const Rule RULES[] = {
    {POINTWISE, 0, 14, 1, true},         {POINTWISE, 1, 1, 1, true},
    {CONVOLUTION, 100, 1, 1, true},      {CONVOLUTION, 101, 7, 1, true},      {CONVOLUTION, 102, 3, 2, true},
    {CONVOLUTION, 103, 3, 2, true},      {CONVOLUTION, 104, 3, 2, true},      {CONVOLUTION, 105, 3, 2, true},
    {CONVOLUTION, 106, 3, 1, true},
    {HEURISTICS, 200, 8, 1, true},       {HEURISTICS, 201, 15, 1, true},
    {CONFIGURATION, 300, 15, 1, true},   {CONFIGURATION, 302, 15, 0, false},
    {PLAN, 400, 0, 1, true},             {PLAN, 401, 15, 1, true},
    {KNOB, 600, 9, 1, true},             {KNOB, 601, 3, 1, true},
    {FORWARD, 700, 4, 1, true},          {FORWARD, 701, 4, 1, true},          {FORWARD, 702, 15, 1, true},
    {FORWARD, 703, 15, 1, true},         {FORWARD, 704, 15, 1, true},         {FORWARD, 705, 15, 1, true},
    {BACKWARD_DATA, 706, 4, 1, true},    {BACKWARD_DATA, 707, 4, 1, true},    {BACKWARD_DATA, 708, 15, 1, true},
    {BACKWARD_DATA, 709, 15, 1, true},   {BACKWARD_DATA, 710, 15, 1, true},   {BACKWARD_DATA, 711, 15, 1, true},
    {BACKWARD_FILTER, 712, 4, 1, true},  {BACKWARD_FILTER, 713, 4, 1, true},  {BACKWARD_FILTER, 714, 15, 1, true},
    {BACKWARD_FILTER, 715, 15, 1, true}, {BACKWARD_FILTER, 716, 15, 1, true}, {BACKWARD_FILTER, 717, 15, 1, true},
    {ADDITION, 750, 15, 1, true},        {ADDITION, 751, 15, 1, true},        {ADDITION, 752, 15, 1, true},
    {ADDITION, 753, 15, 1, true},
    {GRAPH, 800, 0, 1, true},            {GRAPH, 801, 15, 0, true},
    {TENSOR, 900, 3, 1, true},           {TENSOR, 901, 1, 1, true},           {TENSOR, 902, 3, 4, true},
    {TENSOR, 903, 3, 4, true},           {TENSOR, 906, 3, 1, true},           {TENSOR, 907, 2, 1, false},
    {PACK, 1000, 3, 0, true},            {PACK, 1001, 6, 0, true},            {PACK, 1003, 6, 1, true},
    {ENGINE, 1300, 15, 1, true},         {ENGINE, 1301, 3, 1, true},
};

struct Descriptor {
    int kind;
    bool finalized = false;
    std::map<int, std::vector<char>> values;

    template <class T> T one(int attribute) const {
        T value{};
        auto found = values.find(attribute);
        if (found != values.end() && found->second.size() >= sizeof(T)) memcpy(&value, found->second.data(), sizeof(T));
        return value;
    }

    template <class T> std::vector<T> all(int attribute) const {
        auto found = values.find(attribute);
        if (found == values.end()) return {};
        std::vector<T> list(found->second.size() / sizeof(T));
        memcpy(list.data(), found->second.data(), list.size() * sizeof(T));
        return list;
    }

    const Descriptor &at(int attribute) const { return *one<const Descriptor *>(attribute); }
};

struct Handle {
    void *stream = nullptr;
};

thread_local std::string last_error;

int refuse(int status, const std::string &why) {
    last_error = why;
    return status;
}

size_t size_of(int type) {
    switch (type) {
    case 2:
    case 24: return 1;
    case 0:
    case 3:
    case 6:
    case 15: return 8;
    default: return 4;
    }
}

const Rule *rule(int kind, int attribute) {
    for (const Rule &rule : RULES)
        if (rule.kind == kind && rule.attribute == attribute) return &rule;
    return nullptr;
}

// Which engines the heuristics know, the first choice first.
const int64_t FORBIDDEN = 3, USUAL = 7;
const int KNOB_TYPE = 2;
const int64_t KNOB_VALUE = 5;
const int64_t WORKSPACE = 512;

// A convolution of any direction, in NHWC and KRSC.
struct Problem {
    int kind;
    int64_t n, h, w, c, k, r, s, p, q, groups;
    int64_t padding[2], stride[2], dilation[2];
    int x_type, w_type, y_type;
    bool accumulate, bias;
};

struct Job {
    Problem problem;
    char *x, *w, *y;
    const float *bias;
    char *workspace;
};

// The shape of a tensor as n, h, w, c. Its channels must be its innermost axis, and it must be dense.
bool shape(const Descriptor &tensor, int64_t (&sizes)[4]) {
    auto dims = tensor.all<int64_t>(902), strides = tensor.all<int64_t>(903);
    int64_t n = dims[0], c = dims[1], h = dims[2], w = dims[3];
    const int64_t found[4] = {n, h, w, c};
    memcpy(sizes, found, sizeof(sizes));
    return strides[0] == h * w * c && strides[1] == 1 && strides[2] == w * c && strides[3] == c;
}

// Reads a graph. The text is why it is refused.
std::string read(const Descriptor &graph, Problem &problem) {
    auto operations = graph.all<const Descriptor *>(801);
    if (operations.empty() || operations.size() > 2) return "a graph of this many operations";
    const Descriptor &first = *operations[0];
    const std::map<int, std::vector<int>> places = {
        {FORWARD, {700, 701, 702, 703, 704, 705}},
        {BACKWARD_DATA, {706, 707, 708, 709, 710, 711}},
        {BACKWARD_FILTER, {712, 713, 714, 715, 716, 717}},
    };
    auto found = places.find(first.kind);
    if (found == places.end()) return "a graph that does not begin with a convolution";
    const auto &a = found->second;
    const Descriptor &convolution = first.at(a[2]), &w = first.at(a[3]), &x = first.at(a[4]);
    const Descriptor *y = &first.at(a[5]);
    problem = {};
    problem.kind = first.kind;
    if (first.one<float>(a[0]) != 1.0f) return "a factor other than 1";
    problem.accumulate = first.one<float>(a[1]) == 1.0f;
    if (!problem.accumulate && first.one<float>(a[1]) != 0.0f) return "a factor other than 0 and 1";
    if (operations.size() == 2) {
        const Descriptor &addition = *operations[1];
        if (addition.kind != ADDITION || first.kind != FORWARD || !y->one<bool>(907)) return "an operation that is not fused";
        if (&addition.at(751) != y || addition.at(750).one<int>(0) != 0) return "a sum of something else";
        auto dims = addition.at(752).all<int64_t>(902);
        if (dims[0] != 1 || dims[2] != 1 || dims[3] != 1 || addition.at(752).one<int>(901) != F32) return "such a bias";
        y = &addition.at(753);
        problem.bias = true;
    }
    int64_t xs[4], ws[4], ys[4];
    if (!shape(x, xs) || !shape(w, ws) || !shape(*y, ys)) return "tensors that are not dense in NHWC";
    problem.n = xs[0], problem.h = xs[1], problem.w = xs[2], problem.c = xs[3];
    problem.k = ws[0], problem.r = ws[1], problem.s = ws[2];
    problem.p = ys[1], problem.q = ys[2];
    if (ws[3] == 0 || xs[3] % ws[3] || ys[3] != ws[0] || ys[0] != xs[0]) return "shapes that do not fit";
    problem.groups = xs[3] / ws[3];
    if (ws[0] % problem.groups) return "groups that do not divide the channels";
    if (convolution.one<int64_t>(106) != 2 || convolution.one<int>(101) != 1 || convolution.one<int>(100) != F32)
        return "another kind of convolution";
    for (int axis = 0; axis < 2; axis++) {
        problem.padding[axis] = convolution.all<int64_t>(105)[axis];
        problem.stride[axis] = convolution.all<int64_t>(103)[axis];
        problem.dilation[axis] = convolution.all<int64_t>(102)[axis];
        if (convolution.all<int64_t>(104)[axis] != problem.padding[axis]) return "uneven padding";
        int64_t room = xs[1 + axis] + 2 * problem.padding[axis] - problem.dilation[axis] * (ws[1 + axis] - 1) - 1;
        if (room < 0 || ys[1 + axis] != room / problem.stride[axis] + 1) return "an output of another size";
    }
    problem.x_type = x.one<int>(901), problem.w_type = w.one<int>(901), problem.y_type = y->one<int>(901);
    if (problem.x_type != problem.y_type) return "maps of two types";
    if (problem.w_type != problem.x_type) return "weights of another type than the maps";
    if (problem.bias && problem.k % 4) return "a bias for this number of channels";
    if (problem.accumulate && (problem.kind != BACKWARD_DATA || problem.c % 8)) return "a sum for this number of channels";
    return "";
}

float widen(uint16_t bits, int type) {
    uint32_t wide = uint32_t(bits) << 16;
    if (type == F16) {
        uint32_t sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31, fraction = bits & 0x3ff;
        if (exponent == 0) {
            float value = float(fraction) * (1.0f / 16777216.0f);
            return sign ? -value : value;
        }
        wide = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | fraction << 13;
    }
    float value;
    memcpy(&value, &wide, sizeof(value));
    return value;
}

uint16_t narrow(float value, int type) {
    if (type == F16) {
        _Float16 half = (_Float16)value;
        uint16_t bits;
        memcpy(&bits, &half, sizeof(bits));
        return bits;
    }
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t(bits >> 16 | 0x40);
    return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

std::vector<float> load(const char *from, size_t count, int type) {
    std::vector<float> values(count);
    if (type == F32) {
        memcpy(values.data(), from, count * sizeof(float));
    } else {
        auto bits = reinterpret_cast<const uint16_t *>(from);
        for (size_t i = 0; i < count; i++) values[i] = widen(bits[i], type);
    }
    return values;
}

void store(char *to, const std::vector<float> &values, int type) {
    if (type == F32) {
        memcpy(to, values.data(), values.size() * sizeof(float));
    } else {
        auto bits = reinterpret_cast<uint16_t *>(to);
        for (size_t i = 0; i < values.size(); i++) bits[i] = narrow(values[i], type);
    }
}

#define FAST __attribute__((optimize("O3"), target_clones("avx2", "default")))

// The sum of products, in sixteen partial sums.
FAST float dot(const float *a, const float *b, int64_t count) {
    float sums[16] = {};
    int64_t i = 0;
    for (; i + 16 <= count; i += 16)
        for (int lane = 0; lane < 16; lane++) sums[lane] += a[i + lane] * b[i + lane];
    for (; i < count; i++) sums[0] += a[i] * b[i];
    for (int width = 8; width; width /= 2)
        for (int lane = 0; lane < width; lane++) sums[lane] += sums[lane + width];
    return sums[0];
}

FAST void add_times(float *to, const float *from, float factor, int64_t count) {
    for (int64_t i = 0; i < count; i++) to[i] += factor * from[i];
}

// Calls `each(x, w, y)` with the first elements that meet: of a pixel's channels in one group, of one output channel's
// weights, and of that output.
template <class Each> void visit(const Problem &p, Each each) {
    int64_t c = p.c / p.groups, k = p.k / p.groups;
    for (int64_t n = 0; n < p.n; n++)
        for (int64_t oy = 0; oy < p.p; oy++)
            for (int64_t ox = 0; ox < p.q; ox++)
                for (int64_t r = 0; r < p.r; r++) {
                    int64_t y = oy * p.stride[0] - p.padding[0] + r * p.dilation[0];
                    if (y < 0 || y >= p.h) continue;
                    for (int64_t s = 0; s < p.s; s++) {
                        int64_t x = ox * p.stride[1] - p.padding[1] + s * p.dilation[1];
                        if (x < 0 || x >= p.w) continue;
                        for (int64_t of = 0; of < p.k; of++)
                            each(((n * p.h + y) * p.w + x) * p.c + of / k * c, ((of * p.r + r) * p.s + s) * c,
                                 ((n * p.p + oy) * p.q + ox) * p.k + of);
                    }
                }
}

void convolve(const void *data) {
    const Job &job = *static_cast<const Job *>(data);
    const Problem &p = job.problem;
    int64_t c = p.c / p.groups;
    size_t xs = p.n * p.h * p.w * p.c, ws = p.k * p.r * p.s * c, ys = p.n * p.p * p.q * p.k;
    if (p.kind == FORWARD) {
        auto x = load(job.x, xs, p.x_type), w = load(job.w, ws, p.w_type);
        std::vector<float> y(ys);
        visit(p, [&](int64_t xi, int64_t wi, int64_t yi) { y[yi] += dot(&x[xi], &w[wi], c); });
        if (p.bias)
            for (size_t i = 0; i < ys; i++) y[i] += job.bias[i % p.k];
        store(job.y, y, p.y_type);
    } else if (p.kind == BACKWARD_DATA) {
        auto dy = load(job.y, ys, p.y_type), w = load(job.w, ws, p.w_type);
        auto dx = p.accumulate ? load(job.x, xs, p.x_type) : std::vector<float>(xs);
        visit(p, [&](int64_t xi, int64_t wi, int64_t yi) { add_times(&dx[xi], &w[wi], dy[yi], c); });
        store(job.x, dx, p.x_type);
    } else {
        auto x = load(job.x, xs, p.x_type), dy = load(job.y, ys, p.y_type);
        std::vector<float> dw(ws);
        visit(p, [&](int64_t xi, int64_t wi, int64_t yi) { add_times(&dw[wi], &x[xi], dy[yi], c); });
        store(job.w, dw, p.w_type);
    }
    // It is the engine's, and holds nothing afterwards.
    memset(job.workspace, 0xff, WORKSPACE);
}

// The engine of a finalized configuration.
int64_t engine(const Descriptor &configuration) { return configuration.at(300).one<int64_t>(1301); }

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

size_t cudnnGetVersion() { return 91000; }

size_t cudnnGetCudartVersion() { return 12080; }

const char *cudnnGetErrorString(int status) {
    switch (status) {
    case SUCCESS: return "CUDNN_STATUS_SUCCESS";
    case BAD_PARAM: return "CUDNN_STATUS_BAD_PARAM";
    case NOT_FINALIZED: return "CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED";
    case NOT_SUPPORTED: return "CUDNN_STATUS_NOT_SUPPORTED";
    default: return "CUDNN_STATUS_EXECUTION_FAILED";
    }
}

void cudnnGetLastErrorString(char *text, size_t bytes) {
    if (bytes) snprintf(text, bytes, "%s", last_error.c_str());
}

int cudnnCreate(void **handle) {
    *handle = new Handle;
    return SUCCESS;
}

int cudnnDestroy(void *handle) {
    delete static_cast<Handle *>(handle);
    return SUCCESS;
}

int cudnnSetStream(void *handle, void *stream) {
    static_cast<Handle *>(handle)->stream = stream;
    return SUCCESS;
}

int cudnnBackendCreateDescriptor(int kind, void **made) {
    std::set<int> known;
    for (const Rule &rule : RULES) known.insert(rule.kind);
    if (!known.count(kind)) return refuse(NOT_SUPPORTED, "a descriptor of this kind");
    *made = new Descriptor{kind};
    return SUCCESS;
}

int cudnnBackendDestroyDescriptor(void *descriptor) {
    delete static_cast<Descriptor *>(descriptor);
    return SUCCESS;
}

int cudnnBackendSetAttribute(void *handle, int attribute, int type, int64_t count, const void *values) {
    auto *descriptor = static_cast<Descriptor *>(handle);
    const Rule *expected = rule(descriptor->kind, attribute);
    if (descriptor->finalized) return refuse(BAD_PARAM, "the descriptor is finalized");
    if (!expected || expected->type != type) return refuse(BAD_PARAM, "an attribute of another type");
    if (count < 0 || (expected->count && expected->count != count)) return refuse(BAD_PARAM, "another number of elements");
    if (type == 15)
        for (int64_t i = 0; i < count; i++)
            if (!static_cast<const Descriptor *const *>(values)[i]->finalized) return refuse(NOT_FINALIZED, "a descriptor");
    auto bytes = static_cast<const char *>(values);
    descriptor->values[attribute].assign(bytes, bytes + count * size_of(type));
    return SUCCESS;
}

int cudnnBackendFinalize(void *handle) {
    auto *descriptor = static_cast<Descriptor *>(handle);
    for (const Rule &rule : RULES)
        if (rule.kind == descriptor->kind && rule.required && !descriptor->values.count(rule.attribute))
            return refuse(BAD_PARAM, "attribute " + std::to_string(rule.attribute) + " is not set");
    Problem problem;
    std::string why;
    if (descriptor->kind == GRAPH) why = read(*descriptor, problem);
    if (descriptor->kind == ENGINE) {
        int64_t index = descriptor->one<int64_t>(1301);
        if (index != USUAL && index != FORBIDDEN) why = "there is no such engine";
    }
    if (descriptor->kind == PACK && descriptor->all<int64_t>(1000).size() != descriptor->all<void *>(1001).size())
        why = "another number of addresses than of tensors";
    if (!why.empty()) return refuse(NOT_SUPPORTED, why);
    descriptor->finalized = true;
    return SUCCESS;
}

int cudnnBackendGetAttribute(const void *handle, int attribute, int, int64_t room, int64_t *count, void *values) {
    auto *descriptor = static_cast<const Descriptor *>(handle);
    if (!descriptor->finalized) return refuse(NOT_FINALIZED, "the descriptor");
    auto filled = [&](int64_t index) -> Descriptor & { return *static_cast<Descriptor **>(values)[index]; };
    auto set = [](Descriptor &to, int name, auto value) {
        auto bytes = reinterpret_cast<const char *>(&value);
        to.values[name].assign(bytes, bytes + sizeof(value));
    };
    auto give = [&](auto value) {
        *count = 1;
        if (room > 0) memcpy(values, &value, sizeof(value));
        return int(SUCCESS);
    };
    if (descriptor->kind == HEURISTICS && attribute == 202) {
        // The fallback has what the first answer has, too.
        const int64_t engines[2] = {FORBIDDEN, USUAL};
        *count = 2;
        for (int64_t i = 0; i < room && i < 2; i++) {
            auto *engine = new Descriptor{ENGINE, true, {}};
            set(*engine, 1300, descriptor->one<const Descriptor *>(201));
            set(*engine, 1301, engines[i]);
            auto *choice = new Descriptor{KNOB, true, {}};
            set(*choice, 600, KNOB_TYPE);
            set(*choice, 601, KNOB_VALUE);
            // Both live as long as the process, like what cuDNN keeps of them.
            set(filled(i), 300, static_cast<const Descriptor *>(engine));
            if (engines[i] == USUAL) set(filled(i), 302, static_cast<const Descriptor *>(choice));
            filled(i).finalized = true;
        }
        if (room > 2) *count = 2;
        return SUCCESS;
    }
    if (descriptor->kind == CONFIGURATION && attribute == 300) {
        *count = 1;
        if (room > 0) filled(0) = descriptor->at(300);
        return SUCCESS;
    }
    if (descriptor->kind == CONFIGURATION && attribute == 302) {
        auto choices = descriptor->all<const Descriptor *>(302);
        *count = int64_t(choices.size());
        for (int64_t i = 0; i < room && i < *count; i++) filled(i) = *choices[i];
        return SUCCESS;
    }
    if (descriptor->kind == ENGINE && attribute == 1301) return give(descriptor->one<int64_t>(1301));
    if (descriptor->kind == ENGINE && attribute == 1303) {
        // Not deterministic.
        *count = descriptor->one<int64_t>(1301) == FORBIDDEN ? 1 : 0;
        if (room > 0 && *count) memcpy(values, "\4\0\0\0", 4);
        return SUCCESS;
    }
    if (descriptor->kind == KNOB && attribute == 600) return give(descriptor->one<int>(600));
    if (descriptor->kind == KNOB && attribute == 601) return give(descriptor->one<int64_t>(601));
    if (descriptor->kind == PLAN && attribute == 402) return give(WORKSPACE);
    return refuse(NOT_SUPPORTED, "attribute " + std::to_string(attribute));
}

int cudnnBackendExecute(void *handle, void *plan_handle, void *pack_handle) {
    const auto &plan = *static_cast<Descriptor *>(plan_handle), &pack = *static_cast<Descriptor *>(pack_handle);
    if (plan.kind != PLAN || pack.kind != PACK || !plan.finalized || !pack.finalized) return refuse(NOT_FINALIZED, "a descriptor");
    if (plan.one<void *>(400) != handle) return refuse(BAD_PARAM, "a plan for another handle");
    const Descriptor &configuration = plan.at(401);
    if (engine(configuration) != USUAL) return refuse(EXECUTION_FAILED, "an engine that is not deterministic");
    Job job{};
    std::string why = read(configuration.at(300).at(1300), job.problem);
    if (!why.empty()) return refuse(NOT_SUPPORTED, why);
    auto ids = pack.all<int64_t>(1000);
    auto pointers = pack.all<char *>(1001);
    std::map<int64_t, char *> addresses;
    for (size_t i = 0; i < ids.size(); i++) addresses[ids[i]] = pointers[i];
    job.workspace = pack.one<char *>(1003);
    // The numbers of the tensors are the caller's: those of the graph.
    const Descriptor &first = *configuration.at(300).at(1300).all<const Descriptor *>(801)[0];
    auto id = [&](int attribute) { return first.at(attribute).one<int64_t>(906); };
    int base = first.kind == FORWARD ? 703 : first.kind == BACKWARD_DATA ? 709 : 715;
    int64_t y = id(base + 2);
    if (job.problem.bias) {
        const Descriptor &addition = *configuration.at(300).at(1300).all<const Descriptor *>(801)[1];
        y = addition.at(753).one<int64_t>(906);
        job.bias = reinterpret_cast<const float *>(addresses[addition.at(752).one<int64_t>(906)]);
    }
    job.w = addresses[id(base)], job.x = addresses[id(base + 1)], job.y = addresses[y];
    for (const void *address : {(const void *)job.x, (const void *)job.w, (const void *)job.y, (const void *)job.workspace})
        if (!address || uintptr_t(address) % 16) return refuse(BAD_PARAM, "an address that is missing or not aligned");
    if (job.problem.bias && !job.bias) return refuse(BAD_PARAM, "no address of the bias");
    void *stream = static_cast<Handle *>(handle)->stream;
    return emulation_enqueue(stream, convolve, &job, sizeof(job)) == 0 ? SUCCESS : refuse(EXECUTION_FAILED, "the stream");
}

}  // extern "C"
#pragma GCC visibility pop
