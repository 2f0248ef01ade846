// Memory of a sort.
#pragma once
#include "../hearth/macros_begin.h"
#include <cub/util_type.cuh>

namespace cub {
namespace hearth_details {

// Memory of one thread for the length of a call.
template <class T>
class Scratch {
public:
    explicit Scratch(size_t count) : data_(new T[count]) {}
    ~Scratch() { delete[] data_; }
    Scratch(const Scratch &) = delete;
    Scratch &operator=(const Scratch &) = delete;
    operator T *() { return data_; }

private:
    T *data_;
};

}  // namespace hearth_details
}  // namespace cub
#include "../hearth/macros_end.h"
