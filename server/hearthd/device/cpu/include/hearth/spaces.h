// Address spaces: the CUDA address space of a pointer, and conversions between pointers and addresses in one space.
//
// Shared memory is thread-local storage of the module (static) or the block's dynamic memory; local memory is the stack
// that the running thread is on; constant memory is the variables that the program declares `__constant__`
// (hearth_constants, which table.py appends to a program that queries address spaces); everything else is global. A
// grid constant is refused by name (unsupported.py).
#pragma once
#include "abi.h"

namespace hearth {

struct Range {
    const void *begin;
    uint64_t bytes;
};

// Thread-local storage of a module: its number with the dynamic loader, and its size.
struct ModuleStorage {
    size_t module, bytes;
};

}  // namespace hearth

extern "C" {
// The storage of the module in which the address `inside` lies.
hearth::ModuleStorage hearth_module_storage(const void *inside);
// The beginning of the running worker's copy of it.
const unsigned char *hearth_storage_begin(size_t module);
bool hearth_on_stack(const void *p);
extern const hearth::Range hearth_constants[];
}

namespace hearth {

inline const Range static_shared() {
    static const ModuleStorage storage = hearth_module_storage(&storage);
    return Range{hearth_storage_begin(storage.module), storage.bytes};
}
inline const Range dynamic_shared() { return Range{hearth_dynamic_shared, hearth_tls.dynamic_shared_bytes}; }
inline bool within(const Range &range, const void *p) {
    return reinterpret_cast<uintptr_t>(p) - reinterpret_cast<uintptr_t>(range.begin) < range.bytes;
}
inline bool is_constant(const void *p) {
    for (const Range *range = hearth_constants; range->begin != nullptr; ++range) {
        if (within(*range, p)) return true;
    }
    return false;
}

// Addresses within shared memory fit 32 bits and keep the alignment of pointers, as on a GPU. Dynamic memory is above.
inline constexpr uintptr_t dynamic_window = uintptr_t{1} << 28, window_alignment = 1024;
inline uintptr_t window_base(const Range &range) {
    return reinterpret_cast<uintptr_t>(range.begin) & ~(window_alignment - 1);
}

}  // namespace hearth

inline unsigned __isShared(const void *p) {
    return hearth::within(hearth::dynamic_shared(), p) || hearth::within(hearth::static_shared(), p);
}
inline unsigned __isCtaShared(const void *p) { return __isShared(p); }
inline unsigned __isLocal(const void *p) { return hearth_on_stack(p); }
inline unsigned __isConstant(const void *p) { return hearth::is_constant(p); }
inline unsigned __isGlobal(const void *p) { return !__isShared(p) && !__isLocal(p) && !__isConstant(p); }

inline size_t __cvta_generic_to_shared(const void *p) {
    const hearth::Range dynamic = hearth::dynamic_shared();
    if (hearth::within(dynamic, p)) return reinterpret_cast<uintptr_t>(p) - hearth::window_base(dynamic) + hearth::dynamic_window;
    return reinterpret_cast<uintptr_t>(p) - hearth::window_base(hearth::static_shared());
}
inline void *__cvta_shared_to_generic(size_t address) {
    return reinterpret_cast<void *>(address < hearth::dynamic_window
                                        ? address + hearth::window_base(hearth::static_shared())
                                        : address - hearth::dynamic_window + hearth::window_base(hearth::dynamic_shared()));
}
#define HEARTH_SAME_ADDRESS(space) \
    inline size_t __cvta_generic_to_##space(const void *p) { return reinterpret_cast<size_t>(p); } \
    inline void *__cvta_##space##_to_generic(size_t address) { return reinterpret_cast<void *>(address); }
HEARTH_SAME_ADDRESS(global)
HEARTH_SAME_ADDRESS(local)
HEARTH_SAME_ADDRESS(constant)
#undef HEARTH_SAME_ADDRESS
