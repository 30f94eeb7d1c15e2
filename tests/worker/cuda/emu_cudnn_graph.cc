/* tests/worker/cuda/emu_cudnn_graph.cc - see emu.h: convolutions and attention by cuDNN's
 * graph API
 *
 * Plans are made outside of recordings only. Of the engines some must not be taken; see
 * the table.
 *
 * EMU_CUDNN=refused: the engines that are suggested first fail when they are executed;
 * choosy: the one with tensor cores and those behind it do; loose: none is deterministic;
 * large: all need a large workspace.
 */
#include "tests/worker/cuda/emu_cudnn_descriptor.h"

#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>

/* ---- engines ---- */

struct engine {
    double takes; /* of what the usual one does */
    float answers = 1;
    std::vector<cudnnBackendNumericalNote_t> notes;
    std::vector<int> knobs;
    int64_t workspace = 1 << 20;
    bool builds = true, can_be_recorded = true;
};

enum { USUAL, VARYING, BEST = 3, TENSOR_CORES, FASTER = 9 };
static const engine engines[] = {
    {1},
    {0.1, 1, {CUDNN_NUMERICAL_NOTE_WINOGRAD, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC}},
    {0.1, 1, {}, {}, 0, false}, /* what it is too late to say */
    {0.4,
     1.000001f, /* right, but for the last bits */
     {CUDNN_NUMERICAL_NOTE_FFT},
     {CUDNN_KNOB_TYPE_SPLIT_K_SLC, CUDNN_KNOB_TYPE_KERNEL_CFG}},
    {0.3, 1.0003f, {CUDNN_NUMERICAL_NOTE_TENSOR_CORE}}, /* as TF32 would be */
    {0.1, 1, {}, {}, 0, true, false},
    {0.1, 1, {}, {}, int64_t(1) << 40},
    {0.1, 1, {CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS}},
    {0.1, 1, {CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION}},
    {0.6},
};
static const int64_t ENGINES = sizeof engines / sizeof *engines;

/* What each way of guessing says. */
struct config {
    int64_t engine;
    std::vector<int64_t> knobs;
};

static std::vector<config> guess(const descriptor &graph, cudnnBackendHeurMode_t mode)
{
    if (is_attention(graph))
        return mode != CUDNN_HEUR_MODE_A || !good_attention(graph)
                   ? std::vector<config>{}
                   : std::vector<config>{{2}, {USUAL}, {FASTER}};
    if (mode != CUDNN_HEUR_MODE_A)
        return {{2}, {5}, {6}};
    std::vector<config> list = {
        {VARYING},      {USUAL}, {BEST, {2, 1}}, {BEST, {2, 0}}, {FASTER},
        {TENSOR_CORES}, {8}};
    /* many that may not be taken come before the best */
    list.insert(list.begin() + 2, 24, {7});
    return list;
}

static bool told(const char *what)
{
    const char *text = getenv("EMU_CUDNN");
    return text && strcmp(text, what) == 0;
}

static const descriptor &graph_of(const descriptor &engine)
{
    return engine.part(CUDNN_ATTR_ENGINE_OPERATION_GRAPH);
}

static bool good_engine(const descriptor &e)
{
    int64_t i = e.one<int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
    return i >= 0 && i < ENGINES;
}

static const engine &engine_of(const descriptor &config)
{
    return engines[config.part(CUDNN_ATTR_ENGINECFG_ENGINE)
                       .one<int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX)];
}

/* Each knob that the engine has, in any order. */
static bool good_config(const descriptor &c)
{
    std::set<int> set;
    auto found = c.has.find(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES);
    for (int64_t i = 0; found != c.has.end() && i < found->second.count; i++)
        set.insert(c.all<descriptor *>(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES)[i]->one<int>(
            CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE));
    const std::vector<int> &knobs = engine_of(c).knobs;
    return set == std::set<int>(knobs.begin(), knobs.end());
}

static double takes(const descriptor &config)
{
    const engine &e = engine_of(config);
    if (is_attention(graph_of(config.part(CUDNN_ATTR_ENGINECFG_ENGINE))))
        return e.takes;
    operation o = operation_of(graph_of(config.part(CUDNN_ATTR_ENGINECFG_ENGINE))
                                   .part(CUDNN_ATTR_OPERATIONGRAPH_OPS));
    double longer = o.is.which == 1 && e.notes.size() && e.builds ? 4 : 1;
    if (!e.knobs.empty() &&
        config.all<descriptor *>(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES)[1]->one<int64_t>(
            CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE) == 0)
        longer *= 1.2;
    return e.takes * longer;
}

/* ---- the interface ---- */

extern "C" cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                                      cudnnBackendDescriptor_t *d)
{
    descriptor *made = new descriptor;
    made->type = type;
    *d = made;
    return CUDNN_STATUS_SUCCESS;
}

extern "C" cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t d)
{
    delete of(d);
    return CUDNN_STATUS_SUCCESS;
}

extern "C" cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t d,
                                                  cudnnBackendAttributeName_t name,
                                                  cudnnBackendAttributeType_t type,
                                                  int64_t count, const void *values)
{
    return descriptor_set(*of(d), name, type, count, values);
}

static cudnnStatus_t check(const descriptor &d)
{
    bool good = descriptor_fits(d);
    switch (int(d.type)) {
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
        good = d.one<cudnnHandle_t>(CUDNN_ATTR_OPERATIONGRAPH_HANDLE)->device ==
               emu_device();
        break;
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
        good = !emu_recording();
        break;
    case CUDNN_BACKEND_ENGINE_DESCRIPTOR:
        return good_engine(d) ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED;
    case CUDNN_BACKEND_ENGINECFG_DESCRIPTOR:
        good = good_config(d);
        break;
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
        if (!engine_of(d.part(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)).builds)
            return CUDNN_STATUS_NOT_SUPPORTED;
        good = !emu_recording() &&
               d.one<cudnnHandle_t>(CUDNN_ATTR_EXECUTION_PLAN_HANDLE)->device ==
                   emu_device();
        break;
    }
    return good ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}

extern "C" cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t d)
{
    if (of(d)->final || !descriptor_complete(*of(d)))
        return CUDNN_STATUS_BAD_PARAM;
    cudnnStatus_t rc = check(*of(d));
    of(d)->final = rc == CUDNN_STATUS_SUCCESS;
    return rc;
}

/* What is asked for goes into descriptors that the caller has made. */
static bool fill(void *values, int64_t i, const descriptor &with)
{
    descriptor *into = static_cast<descriptor **>(values)[i];
    bool good = into->type == with.type && !into->final;
    *into = with;
    return good;
}

static descriptor
finished(cudnnBackendDescriptorType_t type,
         const std::vector<std::pair<cudnnBackendAttributeName_t, value>> &with)
{
    descriptor d;
    d.type = type;
    d.final = true;
    for (auto &entry : with)
        d.has.insert(entry);
    return d;
}

template <typename T> static value value_of(cudnnBackendAttributeType_t type, T v)
{
    const char *from = reinterpret_cast<const char *>(&v);
    return {type, 1, {from, from + sizeof v}};
}

/* Parts of the answers below, which stay. */
static std::vector<std::unique_ptr<descriptor>> kept;

static descriptor *keep(const descriptor &d)
{
    kept.push_back(std::make_unique<descriptor>(d));
    return kept.back().get();
}

static descriptor config_of(const descriptor &graph, const config &c)
{
    const engine &e = engines[c.engine];
    descriptor *at = const_cast<descriptor *>(&graph);
    descriptor *is = keep(finished(
        CUDNN_BACKEND_ENGINE_DESCRIPTOR,
        {{CUDNN_ATTR_ENGINE_OPERATION_GRAPH, value_of(CUDNN_TYPE_BACKEND_DESCRIPTOR, at)},
         {CUDNN_ATTR_ENGINE_GLOBAL_INDEX, value_of(CUDNN_TYPE_INT64, c.engine)}}));
    descriptor made = finished(
        CUDNN_BACKEND_ENGINECFG_DESCRIPTOR,
        {{CUDNN_ATTR_ENGINECFG_ENGINE, value_of(CUDNN_TYPE_BACKEND_DESCRIPTOR, is)}});
    value knobs{CUDNN_TYPE_BACKEND_DESCRIPTOR, int64_t(e.knobs.size()), {}};
    for (size_t i = 0; i < e.knobs.size(); i++) {
        descriptor *knob = keep(finished(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR,
                                         {{CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE,
                                           value_of(CUDNN_TYPE_KNOB_TYPE, e.knobs[i])},
                                          {CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE,
                                           value_of(CUDNN_TYPE_INT64, c.knobs[i])}}));
        const char *from = reinterpret_cast<const char *>(&knob);
        knobs.bytes.insert(knobs.bytes.end(), from, from + sizeof knob);
    }
    made.has[CUDNN_ATTR_ENGINECFG_KNOB_CHOICES] = knobs;
    return made;
}

static cudnnStatus_t get_results(const descriptor &d, int64_t room, int64_t *count,
                                 void *values)
{
    std::vector<config> all =
        guess(d.part(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH),
              d.one<cudnnBackendHeurMode_t>(CUDNN_ATTR_ENGINEHEUR_MODE));
    bool good = true;
    *count = int64_t(all.size());
    for (int64_t i = 0; i < room && i < *count; i++)
        good = fill(values, i,
                    config_of(d.part(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH),
                              all[size_t(i)])) &&
               good;
    return good ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}

static cudnnStatus_t get_notes(const descriptor &d, int64_t room, int64_t *count,
                               void *values)
{
    auto notes = engines[d.one<int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX)].notes;
    if (told("loose"))
        notes.push_back(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
    *count = int64_t(notes.size());
    for (int64_t i = 0; i < room && i < *count; i++)
        static_cast<cudnnBackendNumericalNote_t *>(values)[i] = notes[size_t(i)];
    return CUDNN_STATUS_SUCCESS;
}

extern "C" cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const d,
                                                  cudnnBackendAttributeName_t name,
                                                  cudnnBackendAttributeType_t type,
                                                  int64_t room, int64_t *count,
                                                  void *values)
{
    const descriptor &from = *of(d);
    if (!from.final)
        return CUDNN_STATUS_NOT_INITIALIZED;
    if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS && type == CUDNN_TYPE_BACKEND_DESCRIPTOR &&
        from.type == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)
        return get_results(from, room, count, values);
    if (name == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE && type == CUDNN_TYPE_NUMERICAL_NOTE &&
        from.type == CUDNN_BACKEND_ENGINE_DESCRIPTOR)
        return get_notes(from, room, count, values);
    if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE && type == CUDNN_TYPE_INT64 &&
        from.type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR && room == 1) {
        *count = 1;
        *static_cast<int64_t *>(values) =
            told("large")
                ? int64_t(40) << 20
                : engine_of(from.part(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)).workspace;
        return CUDNN_STATUS_SUCCESS;
    }
    auto found = from.has.find(name);
    if (found == from.has.end() || found->second.type != type)
        return CUDNN_STATUS_BAD_PARAM;
    const value &v = found->second;
    bool good = true;
    *count = v.count;
    for (int64_t i = 0; i < room && i < v.count; i++) {
        if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR)
            good = fill(values, i, *from.all<descriptor *>(name)[i]) && good;
        else
            memcpy(static_cast<char *>(values) + size_t(i) * size_of(type),
                   v.bytes.data() + size_t(i) * size_of(type), size_of(type));
    }
    return good ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}

/* Where the pack has each of the operation's tensors, if it lies as it was promised. */
static bool find_places(const operation &o, const descriptor &pack, void *places[3])
{
    const int64_t *uids = pack.all<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    void *const *at = pack.all<void *>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    for (int t = 0; t < 3; t++) {
        int64_t uid = o.tensors[t]->one<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID);
        int64_t align = o.tensors[t]->one<int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
        places[t] = nullptr;
        for (int i = 0; i < 3; i++)
            if (uids[i] == uid)
                places[t] = at[i];
        if (!places[t] || reinterpret_cast<uintptr_t>(places[t]) % size_t(align) != 0)
            return false;
    }
    return true;
}

extern "C" cudnnStatus_t cudnnBackendExecute(cudnnHandle_t h,
                                             cudnnBackendDescriptor_t plan,
                                             cudnnBackendDescriptor_t pack)
{
    const descriptor &p = *of(plan), &v = *of(pack);
    void *at[3];
    if (p.type != CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR || !p.final ||
        v.type != CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR || !v.final ||
        p.one<cudnnHandle_t>(CUDNN_ATTR_EXECUTION_PLAN_HANDLE) != h)
        return CUDNN_STATUS_BAD_PARAM;
    const descriptor &config = p.part(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
    const engine &e = engine_of(config);
    const descriptor &graph = graph_of(config.part(CUDNN_ATTR_ENGINECFG_ENGINE));
    if (is_attention(graph))
        return attend(h, graph, v, 1 + int(&e - engines), takes(config) * EMU_USUAL_MS);
    operation o = operation_of(graph.part(CUDNN_ATTR_OPERATIONGRAPH_OPS));
    if (!find_places(o, v, at) ||
        (e.workspace > 0 && !v.one<void *>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE)))
        return CUDNN_STATUS_BAD_PARAM;
    if ((told("refused") && &e <= &engines[VARYING]) ||
        (told("choosy") && &e >= &engines[TENSOR_CORES]))
        return CUDNN_STATUS_NOT_SUPPORTED;
    if (!o.is.may_ask(h, 1 + int(&e - engines)) ||
        (emu_recording() && !e.can_be_recorded))
        return CUDNN_STATUS_EXECUTION_FAILED;
    /* half the numbers have the precision anyway */
    float by = o.is.x.type == CUDNN_DATA_FLOAT ? e.answers : 1;
    double ms = takes(config) * EMU_USUAL_MS;
    emu_put(h->stream, [=] {
        o.is.compute(at[0], at[1], at[2], o.beta, by);
        emu_takes(ms);
        return true;
    });
    return CUDNN_STATUS_SUCCESS;
}
