// examples/hello.cpp - the library from C++
//
//     ddprun -np 2 build/examples/hello_cpp
#include <ddprun/group.h>

#include <cstdio>
#include <memory>
#include <vector>

int main()
{
    ddp_err err;
    std::unique_ptr<ddp_group, decltype(&ddp_group_destroy)> group(
        ddp_group_init(nullptr, &err), ddp_group_destroy);
    std::vector<float> x(1000, 1.0f);
    if (!group || ddp_all_reduce(group.get(), x.data(), x.size(), DDP_F32, DDP_SUM, &err)) {
        std::fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    if (ddp_group_rank(group.get()) == 0)
        std::printf("%g of %d ranks\n", static_cast<double>(x[999]),
                    ddp_group_size(group.get()));
    return x[999] == static_cast<float>(ddp_group_size(group.get())) ? 0 : 1;
}
