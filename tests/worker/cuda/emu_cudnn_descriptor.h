/* tests/worker/cuda/emu_cudnn_descriptor.h - see emu.h: descriptors of cuDNN's graph API
 *
 * They refuse what is not in the table of emu_cudnn_descriptor.cc: attributes of another
 * name, type or count, parts that are not finalised, changes when they are.
 */
#ifndef EMU_CUDNN_DESCRIPTOR_H
#define EMU_CUDNN_DESCRIPTOR_H

#include "tests/worker/cuda/emu_cudnn.h"

#include <map>
#include <vector>

struct value {
    cudnnBackendAttributeType_t type;
    int64_t count;
    std::vector<char> bytes;
};

struct descriptor {
    cudnnBackendDescriptorType_t type;
    bool final = false;
    std::map<cudnnBackendAttributeName_t, value> has;

    template <typename T> const T *all(cudnnBackendAttributeName_t name) const
    {
        return reinterpret_cast<const T *>(has.at(name).bytes.data());
    }
    template <typename T> T one(cudnnBackendAttributeName_t name) const
    {
        return *all<T>(name);
    }
    const descriptor &part(cudnnBackendAttributeName_t name) const
    {
        return **all<descriptor *>(name);
    }
};

inline descriptor *of(cudnnBackendDescriptor_t d)
{
    return static_cast<descriptor *>(d);
}

/* Sets `count` values, or parts: an attribute that such a descriptor has. */
cudnnStatus_t descriptor_set(descriptor &d, cudnnBackendAttributeName_t name,
                             cudnnBackendAttributeType_t type, int64_t count,
                             const void *values);
/* It has all attributes that it needs. */
bool descriptor_complete(const descriptor &d);
/* A tensor, a convolution and an operation of one: its attributes fit together. */
bool descriptor_fits(const descriptor &d);
size_t size_of(cudnnBackendAttributeType_t type);

/* Of its three tensors, x, w and y or their gradients; what it is, and beta. */
struct operation {
    const descriptor *tensors[3];
    emu_convolution is;
    float beta;
};

operation operation_of(const descriptor &o);

/* Is this graph of operations one of attention? emu_cudnn_attention.cc */
bool is_attention(const descriptor &graph);
bool good_attention(const descriptor &graph);
/* Runs it in `ms` on the handle's stream, with what the pack has. */
cudnnStatus_t attend(cudnnHandle_t h, const descriptor &graph, const descriptor &pack,
                     int engine, double ms);

#endif
