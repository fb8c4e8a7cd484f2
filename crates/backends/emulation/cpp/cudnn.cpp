// cuDNN 9's backend API over host memory: the functions that enmasse uses, with their ABI. It refuses what cuDNN refuses, such
// as an attribute of another type, a descriptor that is not finalized, or shapes that do not match.
//
// There are three engines. Engine 0 takes everything but a gradient of weights in another type than the maps'. Engine 1 uses
// "tensor cores": it rounds f32 to tf32, has a knob, needs workspace and leaves some fusions out. Engine 2 is not deterministic.
// As cuDNN from 9.24 on, heuristics mode A proposes no engine for a gradient of weights in another type than the maps' unless
// the window is 1x1, and the fallback proposes one. An engine loads its kernels when it first runs, which a capture does not allow.
#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "convolution.h"

namespace {

using emulation::Convolution;

enum Status {
    SUCCESS = 0,
    BAD_PARAM = 2000,
    NULL_POINTER = 2002,
    MISALIGNED = 2003,
    NOT_FINALIZED = 2004,
    OUT_OF_BOUND = 2005,
    SHAPE_MISMATCH = 2008,
    ATTRIBUTE_TYPE = 2010,
    DESCRIPTOR_TYPE = 2012,
    NOT_SUPPORTED = 3000,
    UNSUPPORTED_PATTERN = 3001,
    UNSUPPORTED_TYPE = 3003,
    UNSUPPORTED_LAYOUT = 3004,
    EXECUTION_FAILED = 5000,
};

const std::map<int, const char *> NAMES = {
    {SUCCESS, "CUDNN_STATUS_SUCCESS"},
    {BAD_PARAM, "CUDNN_STATUS_BAD_PARAM"},
    {NULL_POINTER, "CUDNN_STATUS_BAD_PARAM_NULL_POINTER"},
    {MISALIGNED, "CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER"},
    {NOT_FINALIZED, "CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED"},
    {OUT_OF_BOUND, "CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND"},
    {SHAPE_MISMATCH, "CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH"},
    {ATTRIBUTE_TYPE, "CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE"},
    {DESCRIPTOR_TYPE, "CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE"},
    {NOT_SUPPORTED, "CUDNN_STATUS_NOT_SUPPORTED"},
    {UNSUPPORTED_PATTERN, "CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN"},
    {UNSUPPORTED_TYPE, "CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE"},
    {UNSUPPORTED_LAYOUT, "CUDNN_STATUS_NOT_SUPPORTED_LAYOUT"},
    {EXECUTION_FAILED, "CUDNN_STATUS_EXECUTION_FAILED"},
};

thread_local std::string last_error;

int fail(int status, const char *format, ...) {
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    last_error = text;
    return status;
}

// Kinds of descriptor, and types of attributes, by cuDNN's numbers.
enum Kind {
    POINTWISE = 0, CONVOLUTION = 1, ENGINE = 2, CONFIGURATION = 3, HEURISTICS = 4, PLAN = 5, KNOB = 7, OP_FORWARD = 10, OP_WEIGHTS = 11,
    OP_DATA = 12, OP_POINTWISE = 13, GRAPH = 15, PACK = 16, TENSOR = 17, DEVICE = 38,
};
enum Type { HANDLE = 0, DATA_TYPE = 1, BOOLEAN = 2, INT64 = 3, FLOAT = 4, POINTER = 6, MODE = 7, HEURISTICS_MODE = 8, KNOB_TYPE = 9,
            NAN_PROPAGATION = 10, NOTE = 11, POINTWISE_MODE = 14, DESCRIPTOR = 15, CHAR = 24 };

size_t size_of(int type) {
    switch (type) {
        case HANDLE: case INT64: case POINTER: case DESCRIPTOR: return 8;
        case BOOLEAN: case CHAR: return 1;
        default: return 4;
    }
}

// An attribute that may be set: of which kind, its type, the kind of descriptor it refers to, and whether it must be set.
struct Rule {
    Kind kind;
    Type type;
    int refers = -1;
    bool required = true;
};

const std::map<int, Rule> RULES = {
    {0, {POINTWISE, POINTWISE_MODE}}, {1, {POINTWISE, DATA_TYPE}}, {2, {POINTWISE, NAN_PROPAGATION, -1, false}},
    {100, {CONVOLUTION, DATA_TYPE}}, {101, {CONVOLUTION, MODE}}, {102, {CONVOLUTION, INT64}}, {103, {CONVOLUTION, INT64}},
    {104, {CONVOLUTION, INT64}}, {105, {CONVOLUTION, INT64}}, {106, {CONVOLUTION, INT64}},
    {200, {HEURISTICS, HEURISTICS_MODE}}, {201, {HEURISTICS, DESCRIPTOR, GRAPH}}, {204, {HEURISTICS, DESCRIPTOR, DEVICE, false}},
    {300, {CONFIGURATION, DESCRIPTOR, ENGINE}}, {302, {CONFIGURATION, DESCRIPTOR, KNOB, false}},
    {400, {PLAN, HANDLE, -1, false}}, {401, {PLAN, DESCRIPTOR, CONFIGURATION}}, {407, {PLAN, DESCRIPTOR, DEVICE, false}},
    {600, {KNOB, KNOB_TYPE}}, {601, {KNOB, INT64}},
    {700, {OP_FORWARD, FLOAT}}, {701, {OP_FORWARD, FLOAT}}, {702, {OP_FORWARD, DESCRIPTOR, CONVOLUTION}},
    {703, {OP_FORWARD, DESCRIPTOR, TENSOR}}, {704, {OP_FORWARD, DESCRIPTOR, TENSOR}}, {705, {OP_FORWARD, DESCRIPTOR, TENSOR}},
    {706, {OP_DATA, FLOAT}}, {707, {OP_DATA, FLOAT}}, {708, {OP_DATA, DESCRIPTOR, CONVOLUTION}},
    {709, {OP_DATA, DESCRIPTOR, TENSOR}}, {710, {OP_DATA, DESCRIPTOR, TENSOR}}, {711, {OP_DATA, DESCRIPTOR, TENSOR}},
    {712, {OP_WEIGHTS, FLOAT}}, {713, {OP_WEIGHTS, FLOAT}}, {714, {OP_WEIGHTS, DESCRIPTOR, CONVOLUTION}},
    {715, {OP_WEIGHTS, DESCRIPTOR, TENSOR}}, {716, {OP_WEIGHTS, DESCRIPTOR, TENSOR}}, {717, {OP_WEIGHTS, DESCRIPTOR, TENSOR}},
    {750, {OP_POINTWISE, DESCRIPTOR, POINTWISE}}, {751, {OP_POINTWISE, DESCRIPTOR, TENSOR}},
    {752, {OP_POINTWISE, DESCRIPTOR, TENSOR, false}}, {753, {OP_POINTWISE, DESCRIPTOR, TENSOR}},
    {800, {GRAPH, HANDLE, -1, false}}, {801, {GRAPH, DESCRIPTOR}},
    {900, {TENSOR, INT64}}, {901, {TENSOR, DATA_TYPE}}, {902, {TENSOR, INT64}}, {903, {TENSOR, INT64}}, {906, {TENSOR, INT64}},
    {907, {TENSOR, BOOLEAN, -1, false}},
    {1000, {PACK, INT64}}, {1001, {PACK, POINTER}}, {1003, {PACK, POINTER}},
    {1300, {ENGINE, DESCRIPTOR, GRAPH}}, {1301, {ENGINE, INT64}}, {1307, {ENGINE, DESCRIPTOR, DEVICE, false}},
    {2702, {DEVICE, CHAR}},
};

// What a descriptor is about. Several descriptors can share it, as cuDNN's do once one is part of another.
struct Content {
    Kind kind;
    bool finalized = false;
    std::map<int, std::vector<char>> values;
    std::map<int, std::vector<std::shared_ptr<Content>>> parts;
    // Of a graph: what it computes, without addresses.
    Convolution call = {};
    int64_t ids[4] = {};  // of x, w, y and the bias
    // Of a plan.
    size_t workspace = 0;
    int64_t engine = 0;

    template <typename T>
    T one(int attribute, size_t index = 0) const {
        T value;
        memcpy(&value, values.at(attribute).data() + index * sizeof value, sizeof value);
        return value;
    }
    size_t count(int attribute, size_t size) const {
        auto found = values.find(attribute);
        return found == values.end() ? 0 : found->second.size() / size;
    }
    const Content &part(int attribute) const { return *parts.at(attribute)[0]; }
};

struct Descriptor {
    std::shared_ptr<Content> content;
};

struct Handle {
    void *stream = nullptr;
};

// cuDNN's number of a type, where maps and weights may have it.
bool is_type(int type) { return type == emulation::F32 || type == emulation::F16 || type == emulation::BF16; }

int finalize_tensor(const Content &tensor) {
    if (tensor.count(902, 8) != 4 || tensor.count(903, 8) != 4) return fail(BAD_PARAM, "a tensor needs 4 dimensions and 4 strides");
    auto size = [&](int axis) { return tensor.one<int64_t>(902, axis); };
    auto stride = [&](int axis) { return tensor.one<int64_t>(903, axis); };
    for (int axis = 0; axis < 4; axis++)
        if (size(axis) < 1) return fail(BAD_PARAM, "dimension %d is %ld", axis, long(size(axis)));
    // Axes are batch, channels, height, width; in memory the channels are adjacent.
    if (stride(1) != 1 || stride(3) != size(1) || stride(2) != size(1) * size(3) || stride(0) != size(1) * size(2) * size(3))
        return fail(UNSUPPORTED_LAYOUT, "the emulation takes dense NHWC only");
    if (!is_type(tensor.one<int>(901))) return fail(UNSUPPORTED_TYPE, "type %d", tensor.one<int>(901));
    if (tensor.one<int64_t>(900) % 4) return fail(BAD_PARAM, "alignment %ld", long(tensor.one<int64_t>(900)));
    return SUCCESS;
}

int finalize_convolution(const Content &convolution) {
    if (convolution.one<int64_t>(106) != 2) return fail(BAD_PARAM, "the emulation takes two dimensions only");
    for (int attribute : {102, 103, 104, 105})
        if (convolution.count(attribute, 8) != 2) return fail(BAD_PARAM, "attribute %d needs 2 elements", attribute);
    if (convolution.one<int>(100) != emulation::F32) return fail(UNSUPPORTED_TYPE, "the emulation computes in f32 only");
    if (convolution.one<int>(101) != 1) return fail(NOT_SUPPORTED, "the emulation has cross-correlation only");
    return SUCCESS;
}

// Shape in memory order: NHWC, or KRSC.
void shape(const Content &tensor, int64_t to[4]) {
    const int order[] = {0, 2, 3, 1};
    for (int axis = 0; axis < 4; axis++) to[axis] = tensor.one<int64_t>(902, order[axis]);
}

int finalize_operation(Content &operation) {
    const int first = operation.kind == OP_FORWARD ? 700 : operation.kind == OP_DATA ? 706 : 712;
    const Content &convolution = operation.part(first + 2);
    const Content &w = operation.part(operation.kind == OP_WEIGHTS ? 715 : operation.kind == OP_DATA ? 709 : 703);
    const Content &x = operation.part(operation.kind == OP_WEIGHTS ? 716 : operation.kind == OP_DATA ? 710 : 704);
    const Content &y = operation.part(operation.kind == OP_WEIGHTS ? 717 : operation.kind == OP_DATA ? 711 : 705);
    Convolution &call = operation.call;
    call.direction = operation.kind == OP_FORWARD ? emulation::FORWARD : operation.kind == OP_DATA ? emulation::BACKWARD_DATA : emulation::BACKWARD_WEIGHTS;
    shape(x, call.x);
    shape(w, call.w);
    shape(y, call.y);
    for (int axis = 0; axis < 2; axis++) {
        call.dilation[axis] = convolution.one<int64_t>(102, axis);
        call.stride[axis] = convolution.one<int64_t>(103, axis);
        call.padding[axis] = convolution.one<int64_t>(105, axis);
        int64_t padded = call.padding[axis] + call.x[1 + axis] + convolution.one<int64_t>(104, axis);
        int64_t room = padded - call.dilation[axis] * (call.w[1 + axis] - 1) - 1;
        if (room < 0 || room / call.stride[axis] + 1 != call.y[1 + axis])
            return fail(SHAPE_MISMATCH, "axis %d of the output has %ld pixels", axis, long(call.y[1 + axis]));
    }
    if (call.x[0] != call.y[0] || call.w[0] != call.y[3] || call.x[3] % call.w[3] || call.w[0] % (call.x[3] / call.w[3]))
        return fail(SHAPE_MISMATCH, "the channels or batches do not match");
    if (operation.one<float>(first) != 1) return fail(NOT_SUPPORTED, "alpha must be 1");
    call.accumulate = operation.one<float>(first + 1) == 1;
    call.maps = emulation::Type(x.one<int>(901));
    call.weights = emulation::Type(w.one<int>(901));
    operation.ids[0] = x.one<int64_t>(906);
    operation.ids[1] = w.one<int64_t>(906);
    operation.ids[2] = y.one<int64_t>(906);
    return SUCCESS;
}

// Modes of a pointwise operation.
enum { ADD = 0, RELU = 100 };

int finalize_graph(Content &graph) {
    auto &operations = graph.parts[801];
    if (operations.empty() || operations.size() > 3) return fail(UNSUPPORTED_PATTERN, "%zu operations", operations.size());
    const Content &convolution = *operations[0];
    if (convolution.kind != OP_FORWARD && convolution.kind != OP_DATA && convolution.kind != OP_WEIGHTS)
        return fail(UNSUPPORTED_PATTERN, "the first operation is no convolution");
    graph.call = convolution.call;
    std::copy(convolution.ids, convolution.ids + 4, graph.ids);
    const Content *y = &convolution.part(convolution.kind == OP_WEIGHTS ? 717 : convolution.kind == OP_DATA ? 711 : 705);
    // What is added to, or goes through a ReLU, is virtual.
    auto follows = [&](const Content &operation, int mode) {
        return operation.kind == OP_POINTWISE && convolution.kind == OP_FORWARD && &operation.part(751) == y && operation.part(750).one<int>(0) == mode;
    };
    for (size_t i = 1; i < operations.size(); i++) {
        const Content &operation = *operations[i];
        if (y->one<int>(901) != emulation::F32 || !y->one<bool>(907)) return fail(UNSUPPORTED_TYPE, "what a pointwise operation takes must be virtual, in f32");
        if (i == 1 && follows(operation, ADD)) {
            if (!operation.parts.count(752)) return fail(BAD_PARAM, "a sum of one tensor");
            int64_t sizes[4];
            shape(operation.part(752), sizes);
            if (sizes[0] * sizes[1] * sizes[2] != 1 || sizes[3] != graph.call.y[3]) return fail(SHAPE_MISMATCH, "the bias");
            // As cuDNN's own engines, other than those that it would compile.
            if (operation.part(752).one<int>(901) != graph.call.maps) return fail(UNSUPPORTED_TYPE, "the bias has another type than the maps");
            graph.ids[3] = operation.part(752).one<int64_t>(906);
        } else if (i == 2 && follows(operation, RELU)) {
            if (!operation.part(750).count(2, 4) || operation.part(750).one<int>(2) != 1) return fail(NOT_SUPPORTED, "the emulation has only a ReLU that keeps NaN");
            graph.call.has_relu = true;
        } else {
            return fail(UNSUPPORTED_PATTERN, "only a bias and then a ReLU can follow, and only a forward convolution");
        }
        y = &operation.part(753);
        graph.ids[2] = y->one<int64_t>(906);
    }
    if (y->count(907, 1) && y->one<bool>(907)) return fail(BAD_PARAM, "the result is virtual");
    if (y->one<int>(901) != graph.call.maps) return fail(UNSUPPORTED_TYPE, "input and output have different types");
    return SUCCESS;
}

bool is_cast(const Convolution &call) { return call.weights != call.maps; }

// Whether an engine takes a graph; the workspace that it needs.
int supports(const Content &graph, int64_t engine, size_t *workspace) {
    const Convolution &call = graph.call;
    *workspace = 0;
    if (engine < 0 || engine > 2) return fail(OUT_OF_BOUND, "there is no engine %ld", long(engine));
    if (is_cast(call) && (call.direction != emulation::BACKWARD_WEIGHTS || call.weights != emulation::F32))
        return fail(UNSUPPORTED_TYPE, "weights of another type than the maps");
    if (engine != 1) {
        return is_cast(call) ? fail(UNSUPPORTED_TYPE, "a gradient of weights of another type than the maps") : int(SUCCESS);
    }
    // As on a GPU, an engine takes some gradients of weights as f32, and some fusions not.
    if (is_cast(call) && call.x[3] % 8) return fail(NOT_SUPPORTED, "fewer than 8 channels");
    if (call.accumulate && call.stride[0] > 1) return fail(NOT_SUPPORTED, "adding with strides");
    *workspace = 1024;
    return SUCCESS;
}

enum HeuristicsMode { FALLBACK = 2, MODE_A = 3 };

// A graph that no engine takes is refused before any engine is named.
int finalize_heuristics(const Content &heuristics) {
    const Convolution &call = heuristics.part(201).call;
    const int mode = heuristics.one<int>(200);
    if (mode != FALLBACK && mode != MODE_A) return fail(NOT_SUPPORTED, "mode %d", mode);
    if (mode == MODE_A && is_cast(call) && call.w[1] * call.w[2] > 1) return fail(NOT_SUPPORTED, "no engine for weights of another type");
    if (call.accumulate && call.direction != emulation::BACKWARD_DATA) return fail(NOT_SUPPORTED, "beta must be 0");
    if (heuristics.part(201).ids[3] && call.w[1] > 7) return fail(UNSUPPORTED_PATTERN, "a bias after so large a window");
    size_t workspace;
    for (int64_t engine = 0; engine < 3; engine++)
        if (supports(heuristics.part(201), engine, &workspace) == SUCCESS) return SUCCESS;
    return fail(NOT_SUPPORTED, "no engine takes the graph");
}

int finalize_plan(Content &plan) {
    if (!plan.count(400, 8) && !plan.parts.count(407)) return fail(BAD_PARAM, "neither a handle nor a device");
    const Content &configuration = plan.part(401), &engine = configuration.part(300), &graph = engine.part(1300);
    const int64_t index = engine.one<int64_t>(1301);
    auto knobs = configuration.parts.find(302);
    for (auto &knob : knobs == configuration.parts.end() ? std::vector<std::shared_ptr<Content>>() : knobs->second)
        if (index != 1 || knob->one<int>(600) != 2 || knob->one<int64_t>(601) < 0 || knob->one<int64_t>(601) > 1)
            return fail(BAD_PARAM, "engine %ld has no such knob", long(index));
    plan.call = graph.call;
    plan.engine = index;
    plan.call.rounds = index == 1 && graph.call.maps == emulation::F32;
    std::copy(graph.ids, graph.ids + 4, plan.ids);
    return supports(graph, index, &plan.workspace);
}

template <class Value>
std::vector<char> bytes(Value value) {
    return std::vector<char>(reinterpret_cast<char *>(&value), reinterpret_cast<char *>(&value) + sizeof value);
}

// What an engine says of its arithmetic: 1 uses tensor cores, 2 need not give the same bits again.
void note(Content &engine, int64_t index) {
    if (index == 1) engine.values[1303] = bytes(0);
    if (index == 2) engine.values[1303] = bytes(4);
}

std::shared_ptr<Content> configuration(const std::shared_ptr<Content> &graph, int64_t index) {
    auto engine = std::make_shared<Content>(Content{ENGINE});
    engine->parts[1300] = {graph};
    engine->values[1301] = bytes(index);
    note(*engine, index);
    auto made = std::make_shared<Content>(Content{CONFIGURATION});
    made->parts[300] = {engine};
    if (index == 1) {
        auto knob = std::make_shared<Content>(Content{KNOB});
        knob->values[600] = bytes(2);
        knob->values[601] = bytes(int64_t(1));
        knob->finalized = true;
        made->parts[302] = {knob};
    }
    engine->finalized = made->finalized = true;
    return made;
}

std::vector<std::shared_ptr<Content>> results(const Content &heuristics) {
    std::vector<int64_t> engines = {1, 2, 0};
    if (heuristics.one<int>(200) == FALLBACK) engines = {is_cast(heuristics.part(201).call) ? 1 : 0};
    std::vector<std::shared_ptr<Content>> found;
    for (int64_t engine : engines) found.push_back(configuration(heuristics.parts.at(201)[0], engine));
    return found;
}

Content *content(void *descriptor) { return descriptor ? static_cast<Descriptor *>(descriptor)->content.get() : nullptr; }

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

size_t cudnnGetVersion() { return 92800; }

size_t cudnnGetCudartVersion() { return 12090; }

const char *cudnnGetErrorString(int status) {
    auto found = NAMES.find(status);
    return found == NAMES.end() ? "CUDNN_STATUS_UNKNOWN" : found->second;
}

void cudnnGetLastErrorString(char *text, size_t bytes) { snprintf(text, bytes, "%s", last_error.c_str()); }

int cudnnCreate(Handle **handle) {
    if (!handle) return fail(NULL_POINTER, "handle");
    *handle = new Handle;
    return SUCCESS;
}

int cudnnDestroy(Handle *handle) {
    delete handle;
    return SUCCESS;
}

int cudnnSetStream(Handle *handle, void *stream) {
    if (!handle) return fail(NULL_POINTER, "handle");
    handle->stream = stream;
    return SUCCESS;
}

int cudnnBackendCreateDescriptor(int kind, void **descriptor) {
    if (!descriptor) return fail(NULL_POINTER, "descriptor");
    bool is_known = std::any_of(RULES.begin(), RULES.end(), [&](auto &rule) { return rule.second.kind == kind; });
    if (!is_known) return fail(NOT_SUPPORTED, "the emulation has no descriptor %d", kind);
    *descriptor = new Descriptor{std::make_shared<Content>(Content{Kind(kind)})};
    return SUCCESS;
}

int cudnnBackendDestroyDescriptor(Descriptor *descriptor) {
    delete descriptor;
    return SUCCESS;
}

int cudnnBackendSetAttribute(void *descriptor, int attribute, int type, int64_t count, const void *values) {
    Content *to = content(descriptor);
    if (!to || !values) return fail(NULL_POINTER, "attribute %d", attribute);
    if (to->finalized) return fail(BAD_PARAM, "attribute %d of a finalized descriptor", attribute);
    auto rule = RULES.find(attribute);
    if (rule == RULES.end() || rule->second.kind != to->kind) return fail(BAD_PARAM, "kind %d has no attribute %d", to->kind, attribute);
    if (rule->second.type != type) return fail(ATTRIBUTE_TYPE, "attribute %d has type %d, not %d", attribute, rule->second.type, type);
    if (count < 1) return fail(OUT_OF_BOUND, "%ld elements of attribute %d", long(count), attribute);
    if (type != DESCRIPTOR) {
        auto from = static_cast<const char *>(values);
        to->values[attribute].assign(from, from + size_t(count) * size_of(type));
        return SUCCESS;
    }
    std::vector<std::shared_ptr<Content>> parts;
    for (int64_t i = 0; i < count; i++) {
        auto part = static_cast<Descriptor *const *>(values)[i];
        if (!part) return fail(NULL_POINTER, "attribute %d", attribute);
        if (!part->content->finalized) return fail(NOT_FINALIZED, "attribute %d", attribute);
        if (rule->second.refers >= 0 && rule->second.refers != part->content->kind) return fail(DESCRIPTOR_TYPE, "attribute %d", attribute);
        parts.push_back(part->content);
    }
    to->parts[attribute] = parts;
    return SUCCESS;
}

int cudnnBackendFinalize(void *descriptor) {
    Content *it = content(descriptor);
    if (!it) return fail(NULL_POINTER, "descriptor");
    if (it->finalized) return fail(BAD_PARAM, "it is finalized already");
    for (auto &[attribute, rule] : RULES)
        if (rule.kind == it->kind && rule.required && !it->values.count(attribute) && !it->parts.count(attribute))
            return fail(BAD_PARAM, "attribute %d is not set", attribute);
    int status = SUCCESS;
    switch (it->kind) {
        case TENSOR: status = finalize_tensor(*it); break;
        case CONVOLUTION: status = finalize_convolution(*it); break;
        case OP_FORWARD: case OP_DATA: case OP_WEIGHTS: status = finalize_operation(*it); break;
        case GRAPH: status = finalize_graph(*it); break;
        case HEURISTICS: status = finalize_heuristics(*it); break;
        case ENGINE: {
            size_t workspace;
            status = supports(it->part(1300), it->one<int64_t>(1301), &workspace);
            note(*it, it->one<int64_t>(1301));
            break;
        }
        case PLAN: status = finalize_plan(*it); break;
        case PACK:
            if (it->count(1000, 8) != it->count(1001, 8)) status = fail(BAD_PARAM, "as many addresses as numbers of tensors");
            break;
        case DEVICE: {
            auto &text = it->values[2702];
            if (std::string(text.begin(), text.end()).find("deviceVer") == std::string::npos) status = fail(BAD_PARAM, "deviceVer is missing");
            break;
        }
        default: break;
    }
    it->finalized = status == SUCCESS;
    return status;
}

int cudnnBackendGetAttribute(void *descriptor, int attribute, int type, int64_t room, int64_t *count, void *values) {
    Content *it = content(descriptor);
    if (!it || !count || (room > 0 && !values)) return fail(NULL_POINTER, "attribute %d", attribute);
    if (!it->finalized) return fail(NOT_FINALIZED, "attribute %d", attribute);
    if (type == DESCRIPTOR) {
        bool is_result = attribute == 202 && it->kind == HEURISTICS;
        auto found = it->parts.find(attribute);
        auto parts = is_result ? results(*it) : found == it->parts.end() ? std::vector<std::shared_ptr<Content>>() : found->second;
        // Like cuDNN, which counts results without room, but not knobs.
        *count = room == 0 && !is_result ? 0 : int64_t(parts.size());
        if (room > 0) *count = std::min(*count, room);
        for (int64_t i = 0; i < std::min(room, *count); i++) {
            auto to = static_cast<Descriptor **>(values)[i];
            if (!to) return fail(NULL_POINTER, "attribute %d", attribute);
            if (to->content->kind != parts[i]->kind) return fail(DESCRIPTOR_TYPE, "attribute %d", attribute);
            to->content = parts[i];
        }
        return SUCCESS;
    }
    std::vector<char> bytes;
    if (attribute == 402 && it->kind == PLAN && type == INT64) {
        auto workspace = int64_t(it->workspace);
        bytes.assign(reinterpret_cast<char *>(&workspace), reinterpret_cast<char *>(&workspace) + 8);
    } else if (it->values.count(attribute)) {
        auto rule = RULES.find(attribute);
        if (rule != RULES.end() && rule->second.type != type) return fail(ATTRIBUTE_TYPE, "attribute %d", attribute);
        bytes = it->values[attribute];
    }
    *count = int64_t(bytes.size() / size_of(type));
    if (room > 0) *count = std::min(*count, room);
    if (room > 0) memcpy(values, bytes.data(), size_t(*count) * size_of(type));
    return SUCCESS;
}

int cudnnBackendExecute(Handle *handle, void *plan, void *pack) {
    Content *what = content(plan), *where = content(pack);
    if (!handle || !what || !where) return fail(NULL_POINTER, "handle, plan or pack");
    if (what->kind != PLAN || where->kind != PACK) return fail(DESCRIPTOR_TYPE, "plan or pack");
    if (!what->finalized || !where->finalized) return fail(NOT_FINALIZED, "plan or pack");
    if (!what->count(400, 8)) return fail(BAD_PARAM, "the plan is for a described device");
    Convolution call = what->call;
    void *addresses[4] = {};
    for (int tensor = 0; tensor < 4; tensor++) {
        if (!what->ids[tensor]) continue;
        for (size_t i = 0; i < where->count(1000, 8); i++)
            if (where->one<int64_t>(1000, i) == what->ids[tensor]) addresses[tensor] = where->one<void *>(1001, i);
        if (!addresses[tensor]) return fail(NULL_POINTER, "tensor %ld has no address", long(what->ids[tensor]));
        if (reinterpret_cast<uintptr_t>(addresses[tensor]) % 16) return fail(MISALIGNED, "tensor %ld", long(what->ids[tensor]));
    }
    {
        static std::mutex mutex;
        static std::set<std::pair<int, int64_t>> loaded;
        std::lock_guard<std::mutex> lock(mutex);
        const std::pair<int, int64_t> kernels = {call.direction, what->engine};
        if (emulation_is_capturing(handle->stream) && !loaded.count(kernels))
            return fail(EXECUTION_FAILED, "engine %ld cannot load its kernels during a capture", long(what->engine));
        loaded.insert(kernels);
    }
    call.x_at = addresses[0];
    call.w_at = addresses[1];
    call.y_at = addresses[2];
    call.bias = addresses[3];
    const char *directions[] = {"convolution", "its data gradient", "its weight gradient"};
    call.wrong = emulation_is_wrong(directions[call.direction]);
    call.workspace_bytes = what->workspace;
    call.workspace = what->workspace ? where->one<void *>(1003) : nullptr;
    if (what->workspace && !call.workspace) return fail(NULL_POINTER, "workspace");
    int status = emulation::enqueue(handle->stream, emulation::run, call);
    return status ? fail(EXECUTION_FAILED, "the driver says %d", status) : int(SUCCESS);
}

}  // extern "C"
#pragma GCC visibility pop
